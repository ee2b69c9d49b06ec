//! The specification against the code and the tests.
//!
//! Every requirement of `docs/protocol.md` is cited in the code that implements it and in a test that
//! shows it, and whatever is cited is there. A citation is the id itself, `R-NAK-3`, or a range of them,
//! `R-NAK-1` to `R-NAK-8`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A family and a number: `("NAK", 3)`.
type Id = (String, u32);

#[test]
fn every_requirement_is_cited_in_code_and_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/protocol.md")).expect("docs/protocol.md");
    let mut defined = BTreeSet::new();
    let mut twice = Vec::new();
    for id in text.lines().filter_map(definition) {
        if !defined.insert(id.clone()) {
            twice.push(id);
        }
    }
    assert!(defined.len() > 50, "docs/protocol.md defines only {} requirements", defined.len());

    let (mut code, mut tests) = (Citations::default(), Citations::default());
    let mut files = Vec::new();
    for folder in ["proto/src", "src", "proto/tests", "tests"] {
        rust_files(&root.join(folder), &mut files);
    }
    assert!(files.len() > 50, "found only {} files", files.len());
    for file in &files {
        let name = file.strip_prefix(root).expect("it is below the root");
        if name == Path::new("tests/requirements.rs") {
            continue;
        }
        let source = fs::read_to_string(file).expect("a source file");
        let is_test =
            name.components().any(|c| c.as_os_str() == "tests") || name.ends_with("tests.rs");
        // Unit tests are at the bottom of their file.
        let unit =
            if is_test { 0 } else { source.find("#[cfg(test)]\nmod ").unwrap_or(source.len()) };
        code.add(name, &source[..unit]);
        tests.add(name, &source[unit..]);
    }

    let mut faults = Vec::new();
    faults.extend(twice.iter().map(|id| format!("{} is defined twice", show(id))));
    for id in &defined {
        for (what, citations) in [("code", &code), ("test", &tests)] {
            if !citations.0.contains_key(id) {
                faults.push(format!("{} is cited in no {what}", show(id)));
            }
        }
    }
    let mut in_text = Citations::default();
    in_text.add(Path::new("docs/protocol.md"), &text);
    for (id, place) in code.0.iter().chain(&tests.0).chain(&in_text.0) {
        if !defined.contains(id) {
            faults.push(format!(
                "{} is cited in {}, and is not defined",
                show(id),
                place.display()
            ));
        }
    }
    assert!(faults.is_empty(), "docs/protocol.md:\n  {}", faults.join("\n  "));
}

#[test]
fn citations_are_found() {
    let found = |text: &str| citations(text).iter().map(show).collect::<Vec<_>>();
    assert_eq!(
        found("`R-NAK-1` to\n    /// `R-NAK-3`, R-FLOW-2."),
        ["R-NAK-1", "R-NAK-2", "R-NAK-3", "R-FLOW-2"]
    );
    assert_eq!(found("C-QKEY-1, FOR-X-1, R-, R-x-1, R-A-"), [""; 0]);
    assert_eq!(definition("- **R-NAK-12** A frame"), Some(("NAK".into(), 12)));
    assert_eq!(definition("as R-NAK-12 says"), None);
}

/// Where each id is first cited.
#[derive(Default)]
struct Citations(BTreeMap<Id, PathBuf>);

impl Citations {
    fn add(&mut self, file: &Path, text: &str) {
        for id in citations(text) {
            self.0.entry(id).or_insert_with(|| file.into());
        }
    }
}

/// The id that a line of the specification defines.
fn definition(line: &str) -> Option<Id> {
    let (id, _) = line.strip_prefix("- **")?.split_once("**")?;
    let (id, rest) = leading_id(id)?;
    rest.is_empty().then_some(id)
}

/// All ids that a text cites.
fn citations(text: &str) -> Vec<Id> {
    let mut found: Vec<Id> = Vec::new();
    let mut rest = text;
    let mut between = String::new();
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        if !before.is_alphanumeric()
            && let Some((id, after)) = leading_id(rest)
        {
            if between.trim() == "to"
                && let Some((family, first)) = found.last().cloned()
                && family == id.0
            {
                found.extend((first + 1..id.1).map(|n| (family.clone(), n)));
            }
            found.push(id);
            between.clear();
            (rest, before) = (after, '0');
            continue;
        }
        if !matches!(c, '`' | '/' | '!' | '\n') {
            between.push(c);
        }
        (rest, before) = (&rest[c.len_utf8()..], c);
    }
    found
}

/// The id that a text begins with, and what follows it.
fn leading_id(text: &str) -> Option<(Id, &str)> {
    let (family, rest) = text.strip_prefix("R-")?.split_once('-')?;
    if family.is_empty() || !family.bytes().all(|b| b.is_ascii_uppercase()) {
        return None;
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let number = rest[..digits].parse().ok()?;
    Some(((family.into(), number), &rest[digits..]))
}

fn show((family, number): &Id) -> String {
    format!("R-{family}-{number}")
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}
