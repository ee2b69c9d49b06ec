//! The document and the suite name the same rules.

use std::collections::BTreeSet;

const DOCUMENT: &str = include_str!("../../docs/device-contract.md");

const TOPICS: [&str; 10] = [
    include_str!("ah.rs"),
    include_str!("buffers.rs"),
    include_str!("counters.rs"),
    include_str!("events.rs"),
    include_str!("multicast.rs"),
    include_str!("qkey.rs"),
    include_str!("rig.rs"),
    include_str!("srq.rs"),
    include_str!("states.rs"),
    include_str!("teardown.rs"),
];

#[test]
fn every_rule_has_a_case_and_every_case_a_rule() {
    let stated: BTreeSet<_> = rules(DOCUMENT).collect();
    let shown: BTreeSet<_> = TOPICS.iter().flat_map(|text| rules(text)).collect();
    assert!(stated.len() > 20);
    assert_eq!(stated, shown);
}

/// The rules that a text names: `C-`, a word, `-`, a number.
fn rules(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("C-").filter_map(|(at, _)| {
        let rest = &text[at..];
        let topic = 2 + rest[2..].find(|c: char| !c.is_ascii_uppercase())?;
        let digits = rest[topic..].strip_prefix('-')?;
        let count = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        (topic > 2 && count > 0).then(|| &rest[..topic + 1 + count])
    })
}
