//! Topic names and the patterns that choose among them.

use alloc::string::String;
use alloc::vec::Vec;

/// Which topics a subscription wants: names in which `*` stands for any run of characters.
///
/// The default wants all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPattern {
    /// Any of these; none means every topic.
    any: Vec<String>,
}

impl TopicPattern {
    /// A pattern of one name.
    pub fn new(pattern: impl Into<String>) -> Self {
        Self { any: alloc::vec![pattern.into()] }
    }

    /// Adds another name.
    #[must_use]
    pub fn or(mut self, pattern: impl Into<String>) -> Self {
        self.any.push(pattern.into());
        self
    }

    /// Whether `topic` is wanted.
    pub fn matches(&self, topic: &str) -> bool {
        self.any.is_empty() || self.any.iter().any(|p| matches(p.as_bytes(), topic.as_bytes()))
    }
}

/// Matching with one point of return, so that no pattern takes more than |pattern| × |topic| steps.
fn matches(pattern: &[u8], topic: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < topic.len() {
        if pattern.get(p) == Some(&b'*') {
            back = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p) == Some(&topic[t]) {
            p += 1;
            t += 1;
        } else if let Some((star, from)) = back {
            back = Some((star, from + 1));
            p = star;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_run() {
        for (pattern, topic, wanted) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("node/*/cpu", "node/7/cpu", true),
            ("node/*/cpu", "node/7/mem", false),
            ("*a*b", "xaaab", true),
            ("*a*b", "xaaa", false),
            ("a**", "a", true),
        ] {
            assert_eq!(TopicPattern::new(pattern).matches(topic), wanted, "{pattern} {topic}");
        }
        assert!(TopicPattern::default().matches("anything"));
        assert!(TopicPattern::new("a").or("b").matches("b"));
    }
}
