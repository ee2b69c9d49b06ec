//! The files of `examples/deploy`, run as far as that goes without the systems that they are for.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Folder, QCAST, Run, group, qcast};

fn deploy(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/deploy").join(name)
}

/// A folder with these programs in it, and this build's `qcast`, first in the path.
fn path(folder: &Folder, programs: &[(&str, &str)]) -> String {
    use std::os::unix::fs::PermissionsExt;
    for (name, text) in programs {
        let file = folder.file(name, text.as_bytes());
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::os::unix::fs::symlink(QCAST, folder.path().join("qcast")).unwrap();
    format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap())
}

/// A script of ours, with nothing of this environment that it would heed.
fn script(name: &str, path: &str) -> Command {
    let mut command = Command::new(deploy(name));
    for variable in
        ["QCAST_FAULT", "QCAST_GROUP", "QCAST_SECRET", "RUST_LOG", "SLURM_PROCID", "PMI_RANK"]
    {
        command.env_remove(variable);
    }
    command.env("PATH", path).env("QCAST_DEVICE", "soft");
    command
}

/// Starts four of what it is given, the first with its own standard input.
const FOUR: &str = r#"
    for rank in 1 2 3; do
        launch "$rank" "$@" </dev/null &
    done
    status=0
    launch 0 "$@" || status=$?
    for job in $(jobs -p); do wait "$job" || status=$?; done
    exit "$status"
"#;

#[test]
fn the_slurm_job_reaches_every_task() {
    let folder = Folder::new("slurm");
    let srun = format!(
        "#!/bin/bash\nlaunch() {{ SLURM_PROCID=$1 SLURM_NTASKS=4 \"${{@:2}}\"; }}\n\
         while [[ $1 == --* ]]; do shift; done\n{FOUR}"
    );
    let path = path(&folder, &[("srun", &srun)]);
    let file = folder.file("lines", b"one\ntwo\nthree\n");
    let mut command = script("slurm.sbatch", &path);
    command.arg(&file).env("SLURM_JOB_ID", format!("{}", std::process::id()));
    command.env("SLURM_SUBMIT_DIR", env!("CARGO_MANIFEST_DIR"));
    let mut ended = Run::of(&mut command).end().expect(0);
    ended.stdout.sort();
    assert_eq!(ended.stdout, ["one", "one", "one", "three", "three", "three", "two", "two", "two"]);
}

#[test]
fn the_mpi_launch_reaches_every_rank() {
    for (folder, version, variables) in [
        ("openmpi", "mpirun (Open MPI) 5.0.3", "OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=4"),
        ("mpich", "HYDRA build details:", "PMI_RANK=$1 PMI_SIZE=4"),
    ] {
        let open = folder == "openmpi";
        let folder = Folder::new(folder);
        let log = folder.join("arguments");
        let mpirun = format!(
            "#!/bin/bash\nlaunch() {{ {variables} \"${{@:2}}\"; }}\n\
             if [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n\
             echo \"$*\" >'{log}'\nwhile [[ $1 == -* ]]; do shift 2; done\n{FOUR}"
        );
        let path = path(&folder, &[("mpirun", &mpirun)]);
        // Files are found from where it is called.
        folder.file("lines", b"one\n");
        let mut command = script("mpi-launch", &path);
        command.current_dir(folder.path()).args(["lines", "-np", "4"]);
        let ended = Run::of(&mut command).end().expect(0);
        assert_eq!(ended.stdout, ["one", "one", "one"]);
        let arguments = fs::read_to_string(log).unwrap();
        assert_eq!(arguments.contains("-x QCAST_SECRET"), open, "{arguments}");
        let rank = deploy("rank").display().to_string();
        assert!(arguments.contains(&format!("-np 4 {rank}")), "{arguments}");
    }
}

#[test]
fn a_rank_says_what_it_lacks() {
    let folder = Folder::new("rank");
    let path = path(&folder, &[]);
    for (variables, says) in [
        (&[][..], "QCAST_GROUP"),
        (&[("QCAST_GROUP", "g")], "QCAST_SECRET"),
        (&[("QCAST_GROUP", "g"), ("QCAST_SECRET", "s")], "which process of how many"),
    ] {
        let mut command = script("rank", &path);
        for name in [
            "SLURM_NTASKS",
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "PMI_SIZE",
            "PMIX_RANK",
        ] {
            command.env_remove(name);
        }
        let ended = Run::of(command.envs(variables.iter().copied())).end();
        assert!(ended.code != Some(0) && ended.said().contains(says), "{ended:#?}");
    }
}

/// Runs a command line of one of the files as a member, and sees it listen and leave.
fn joins(words: &[String], secret: &str, group: &str) {
    let words: Vec<_> = words
        .iter()
        .map(|word| {
            let name = format!("host of {group}");
            let word = word.replace("%H", &name).replace("$(NODE_NAME)", &name);
            let word = word.replace("%N", "unit").replace("$(POD_NAME)", "pod");
            word.replace("%d/secret", secret).replace("/etc/qcast/secret", secret)
        })
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut command = qcast(&words);
    let mut member = Run::of(command.env("QCAST_GROUP", group));
    let listening = member.event("listening");
    assert_eq!(listening["group"], group);
    assert_eq!(member.event("members")["members"][0]["metadata"].as_object().unwrap().len(), 1);
    member.signal(nix::sys::signal::Signal::SIGTERM);
    member.end().expect(0);
}

#[test]
fn the_unit_starts_a_member() {
    let text = fs::read_to_string(deploy("qcast-member.service")).unwrap();
    let mut section = "";
    let mut settings = Vec::new();
    for line in
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if line.starts_with('[') {
            section = line;
        } else {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{line:?}"));
            settings.push((section, name, value));
        }
    }
    let find = |name: &str| settings.iter().find(|(_, n, _)| *n == name).unwrap().2;
    assert_eq!(find("LimitMEMLOCK"), "infinity");
    assert_eq!(find("KillSignal"), "SIGTERM");
    assert!(settings.iter().any(|(section, ..)| *section == "[Install]"));
    let folder = Folder::new("unit");
    let mut words = find("ExecStart").split(' ').map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some("/usr/local/bin/qcast"));
    joins(&words.collect::<Vec<_>>(), &folder.file("secret", b"s\n"), &group("unit"));
}

#[test]
fn the_manifest_starts_a_member() {
    let parse =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let parsed =
        Command::new("python3").args(["-c", parse]).arg(deploy("kubernetes.yaml")).output();
    let parsed = match parsed {
        Ok(parsed) if parsed.status.success() => parsed.stdout,
        other => {
            let why =
                format!("python3 with its yaml module is needed to read a manifest: {other:?}");
            assert!(std::env::var_os("QCAST_NO_SKIP").is_none(), "{why}");
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let documents: Vec<Value> = serde_json::from_slice(&parsed).unwrap();
    let [document] = &documents[..] else { panic!("{documents:?}") };
    assert_eq!(document["kind"], "DaemonSet");
    let template = &document["spec"]["template"];
    assert_eq!(document["spec"]["selector"]["matchLabels"], template["metadata"]["labels"]);
    let container = &template["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"]["rdma/hca_shared_devices_a"], 1);
    assert_eq!(container["securityContext"]["capabilities"]["add"][0], "IPC_LOCK");
    let mounted = container["volumeMounts"][0]["name"].as_str();
    assert_eq!(mounted, template["spec"]["volumes"][0]["name"].as_str());
    let words = |key: &str| container[key].as_array().unwrap().clone();
    let words: Vec<_> = words("command").into_iter().chain(words("args")).collect();
    let words: Vec<_> = words.iter().map(|word| word.as_str().unwrap().to_owned()).collect();
    assert_eq!(words[0], "qcast");
    let folder = Folder::new("manifest");
    joins(&words[1..], &folder.file("secret", b"s\n"), &group("manifest"));
}
