//! A file that is being received: written under a temporary name, and kept only when it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::exit::Failure;
use super::transfer::{Hash, Hasher, Part};

/// A file that is not whole yet. Dropping it removes what was written.
#[derive(Debug)]
pub(crate) struct Incoming {
    name: String,
    path: PathBuf,
    temporary: Temporary,
    file: File,
    size: u64,
    written: u64,
    hasher: Hasher,
    hash: Option<Hash>,
    force: bool,
}

/// What a part meant for the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Taken {
    /// It goes on.
    More,
    /// It is whole, and its hash is right.
    Whole,
    /// It is whole, and its hash is wrong.
    Wrong,
    /// The part does not belong there.
    Torn,
}

/// A file that was kept.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) hash: Hash,
}

impl Incoming {
    /// Creates the temporary file; `None` if a file of this name exists and is not to be replaced.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn create(
        dir: &Path,
        name: &str,
        size: u64,
        force: bool,
    ) -> Result<Option<Self>, Failure> {
        let path = dir.join(name);
        if !force && fs::symlink_metadata(&path).is_ok() {
            return Ok(None);
        }
        let (temporary, file) =
            Temporary::create(dir).map_err(|error| cannot_write(&dir.join(name), &error))?;
        Ok(Some(Self {
            name: name.to_owned(),
            path,
            temporary,
            file,
            size,
            written: 0,
            hasher: Hasher::default(),
            hash: None,
            force,
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that were written.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Takes the next part.
    ///
    /// # Errors
    /// It cannot be written: the disk is full, for example.
    pub(crate) fn take(&mut self, part: &Part<'_>) -> Result<Taken, Failure> {
        match *part {
            Part::Begin { .. } => Ok(Taken::Torn),
            Part::Piece { offset, bytes } => {
                let left = self.size - self.written;
                if offset != self.written || bytes.len() as u64 > left {
                    return Ok(Taken::Torn);
                }
                self.file.write_all(bytes).map_err(|error| cannot_write(&self.path, &error))?;
                self.hasher.update(bytes);
                self.written += bytes.len() as u64;
                Ok(Taken::More)
            }
            Part::End { size, hash } => {
                if size != self.size || self.written != self.size {
                    return Ok(Taken::Torn);
                }
                let found = std::mem::take(&mut self.hasher).finish();
                self.hash = Some(found);
                Ok(if found == hash { Taken::Whole } else { Taken::Wrong })
            }
        }
    }

    /// Gives the file its name; `None` if a file of this name has come into being, and is not to be
    /// replaced.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn keep(self) -> Result<Option<Kept>, Failure> {
        let Self { name, path, mut temporary, file, size, hash, force, .. } = self;
        // Some file systems tell only now that there was no room.
        file.sync_all().map_err(|error| cannot_write(&path, &error))?;
        match temporary.rename(&path, force) {
            Ok(()) => Ok(Some(Kept { name, path, size, hash: hash.unwrap_or_default() })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(cannot_write(&path, &error)),
        }
    }
}

/// A temporary file, removed unless it was renamed.
#[derive(Debug)]
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// A new file in `dir`, with a name that no other process uses.
    fn create(dir: &Path) -> io::Result<(Self, File)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = dir.join(format!(".qcast-{}-{number}.part", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Self { path, renamed: false }, file)),
                // Left behind by a process of the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn rename(&mut self, to: &Path, force: bool) -> io::Result<()> {
        if force {
            fs::rename(&self.path, to)?;
        } else {
            // Unlike a rename, a link never replaces what is there.
            match fs::hard_link(&self.path, to) {
                Ok(()) => fs::remove_file(&self.path)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
                // A file system without links.
                Err(_) if fs::symlink_metadata(to).is_err() => fs::rename(&self.path, to)?,
                Err(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            }
        }
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // There is nobody to tell, and the folder may be gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; what was written is removed: make room, and send it again"
        }
        _ => "",
    };
    Failure::failed(format_args!("cannot write {}: {error}{hint}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test alone.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("qcast-incoming-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn end(bytes: &[u8]) -> Part<'static> {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        Part::End { size: bytes.len() as u64, hash: hasher.finish() }
    }

    #[test]
    fn a_whole_file_gets_its_name() {
        let folder = Folder::new("whole");
        let mut incoming = Incoming::create(&folder.0, "a", 4, false).unwrap().unwrap();
        for (offset, bytes) in [(0, &b"ab"[..]), (2, b"cd")] {
            assert_eq!(incoming.take(&Part::Piece { offset, bytes }).unwrap(), Taken::More);
        }
        assert_eq!(incoming.take(&end(b"abcd")).unwrap(), Taken::Whole);
        assert_eq!(incoming.keep().unwrap().unwrap().size, 4);
        assert_eq!(folder.names(), ["a"]);
        assert_eq!(fs::read(folder.0.join("a")).unwrap(), b"abcd");
    }

    #[test]
    fn nothing_is_left_of_a_file_that_is_not_whole() {
        let folder = Folder::new("torn");
        let piece = Part::Piece { offset: 0, bytes: b"abc" };
        for (part, taken) in [
            (Part::Piece { offset: 4, bytes: b"d" }, Taken::Torn),
            (Part::Piece { offset: 3, bytes: b"de" }, Taken::Torn),
            (Part::Begin { name: "b", size: 1 }, Taken::Torn),
            (end(b"abc"), Taken::Torn),
        ] {
            let mut incoming = Incoming::create(&folder.0, "a", 4, false).unwrap().unwrap();
            assert_eq!(incoming.take(&piece).unwrap(), Taken::More);
            assert_eq!(incoming.take(&part).unwrap(), taken);
        }
        let mut incoming = Incoming::create(&folder.0, "a", 3, false).unwrap().unwrap();
        assert_eq!(incoming.take(&piece).unwrap(), Taken::More);
        assert_eq!(incoming.take(&end(b"abd")).unwrap(), Taken::Wrong);
        drop(incoming);
        assert_eq!(folder.names(), [""; 0]);
    }

    #[test]
    fn what_exists_is_not_replaced_by_chance() {
        let folder = Folder::new("exists");
        let whole = |force| {
            let mut incoming = Incoming::create(&folder.0, "a", 0, force).unwrap()?;
            assert_eq!(incoming.take(&end(b"")).unwrap(), Taken::Whole);
            // In the meantime.
            fs::write(folder.0.join("a"), "mine").unwrap();
            incoming.keep().unwrap()
        };
        // The first finds it at its end, the second at its beginning.
        assert!(whole(false).is_none());
        assert!(whole(false).is_none());
        assert_eq!(fs::read(folder.0.join("a")).unwrap(), b"mine");
        assert_eq!(whole(true).unwrap().size, 0);
        assert_eq!(folder.names(), ["a"]);
        assert_eq!(fs::read(folder.0.join("a")).unwrap(), b"");
    }
}
