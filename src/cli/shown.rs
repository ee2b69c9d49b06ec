//! Text of others as it may be shown: with nothing in it that a terminal obeys.
//!
//! Names and metadata come from peers, who may be anybody. Control characters move the cursor and set
//! colours; marks of direction reverse the text beside them; a line separator makes one line two.

use std::borrow::Cow;

/// The text, with what a terminal obeys written as its number.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown.into()
}

fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks and isolates of direction.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Separators of lines and paragraphs, what has no width, and tags that nobody sees.
            | '\u{2028}' | '\u{2029}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Key and value pairs as `key=value`, in their order.
pub(crate) fn pairs(metadata: &[(String, String)]) -> String {
    let pairs: Vec<_> = metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    shown(&pairs.join(" ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_does_not_write_to_the_terminal() {
        assert_eq!(shown("plain é 日本 x"), "plain é 日本 x");
        assert_eq!(shown("a\x1b[2Jb\r\n\t"), "a\\u{1b}[2Jb\\r\\n\\t");
        assert_eq!(shown("\u{9b}2J"), "\\u{9b}2J");
        assert_eq!(shown("user\u{202e}nimda"), "user\\u{202e}nimda");
        assert_eq!(shown("a\u{2028}b\u{200b}"), "a\\u{2028}b\\u{200b}");
        assert_eq!(
            pairs(&[("k".into(), "a\x07".into()), ("l".into(), "b".into())]),
            "k=a\\u{7} l=b"
        );
    }
}
