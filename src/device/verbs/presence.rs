//! Why there is no device: the four causes told apart, by what sysfs and /dev show.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::VerbsOpenError;

/// Where the real ones are.
pub(super) const ROOT: &str = "/";

/// Why libibverbs lists nothing. `root` is the root of the file system, or of a test's.
pub(super) fn why_no_device(root: &Path) -> VerbsOpenError {
    let devices = entries(&root.join("sys/class/infiniband"));
    if devices.is_empty() {
        // With the module loaded the class is there, even if it is empty.
        let loaded = root.join("sys/class/infiniband_verbs").exists();
        return if loaded { VerbsOpenError::NoLink } else { VerbsOpenError::NoRdma };
    }
    let nodes: Vec<PathBuf> = entries(&root.join("sys/class/infiniband_verbs"))
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| root.join("dev/infiniband").join(name))
        .collect();
    if nodes.is_empty() {
        return VerbsOpenError::NoUverbs { devices };
    }
    let closed = nodes.iter().find_map(|node| closed(node));
    closed.unwrap_or(VerbsOpenError::NoProvider { devices })
}

/// Whether a device cannot be opened because its file cannot.
pub(super) fn closed_node(root: &Path, device: &str) -> Option<VerbsOpenError> {
    let class = root.join("sys/class/infiniband_verbs");
    let is_its = |name: &String| {
        let owner = fs::read_to_string(class.join(name).join("ibdev"));
        owner.is_ok_and(|owner| owner.trim() == device)
    };
    let name = entries(&class).into_iter().find(is_its)?;
    closed(&root.join("dev/infiniband").join(name))
}

fn closed(node: &Path) -> Option<VerbsOpenError> {
    fs::OpenOptions::new().read(true).write(true).open(node).err()?;
    Some(VerbsOpenError::Unreadable { node: node.display().to_string() })
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(folder) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(PathBuf);

    impl Fake {
        fn new(name: &str, folders: &[&str], files: &[&str]) -> Self {
            let root =
                std::env::temp_dir().join(format!("qcast-presence-{}-{name}", std::process::id()));
            for folder in folders {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            for file in files {
                fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
                fs::write(root.join(file), "").unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    // Case 131: each cause has its own message.
    #[test]
    fn the_causes_are_told_apart() {
        let class = "sys/class/infiniband";
        let verbs = "sys/class/infiniband_verbs";
        let none = Fake::new("none", &["sys/class"], &[]);
        assert!(matches!(why_no_device(&none.0), VerbsOpenError::NoRdma));
        let empty = Fake::new("empty", &[class, verbs], &[]);
        assert!(matches!(why_no_device(&empty.0), VerbsOpenError::NoLink));
        let rxe = format!("{class}/rxe0");
        let core_only = Fake::new("core", &[&rxe], &[]);
        assert!(matches!(why_no_device(&core_only.0), VerbsOpenError::NoUverbs { .. }));
        let uverbs = format!("{verbs}/uverbs0");
        let hidden = Fake::new("hidden", &[&rxe, &uverbs], &[]);
        let error = why_no_device(&hidden.0);
        assert!(matches!(&error, VerbsOpenError::Unreadable { node } if node.ends_with("uverbs0")));
        let whole = Fake::new("whole", &[&rxe, &uverbs], &["dev/infiniband/uverbs0"]);
        let error = why_no_device(&whole.0);
        assert!(matches!(&error, VerbsOpenError::NoProvider { devices } if devices == &["rxe0"]));
    }

    // libibverbs lists a device whose file is closed, and says no more than ENOENT when it is opened.
    #[test]
    fn a_device_whose_file_is_closed_is_known() {
        let owner = "sys/class/infiniband_verbs/uverbs7/ibdev";
        let host = Fake::new("closed", &[], &[owner]);
        fs::write(host.0.join(owner), "mlx5_1\n").unwrap();
        let error = closed_node(&host.0, "mlx5_1").unwrap();
        assert!(matches!(&error, VerbsOpenError::Unreadable { node } if node.ends_with("uverbs7")));
        assert!(closed_node(&host.0, "mlx5_0").is_none());
        fs::create_dir_all(host.0.join("dev/infiniband")).unwrap();
        fs::write(host.0.join("dev/infiniband/uverbs7"), "").unwrap();
        assert!(closed_node(&host.0, "mlx5_1").is_none());
    }
}
