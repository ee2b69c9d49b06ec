//! Compiles the CycloneDDS shim (its type support comes from idlc) and links the Debian libraries.

use std::env;
use std::process::Command;

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets it");
    let idlc = Command::new("idlc").args(["-o", &out, "src/msg.idl"]).status();
    assert!(idlc.is_ok_and(|s| s.success()), "idlc failed (package cyclonedds-tools)");
    cc::Build::new()
        .file("src/dds.c")
        .file(format!("{out}/msg.c"))
        .include(&out)
        .compile("ddsshim");
    for lib in ["ddsc", "norm"] {
        println!("cargo:rustc-link-lib={lib}");
    }
    println!("cargo:rerun-if-changed=src/dds.c");
    println!("cargo:rerun-if-changed=src/msg.idl");
}
