//! What becomes of a member: a table.

use super::MemberState;

/// Something that says how a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It was heard through the group.
    Heard,
    /// It was heard, but not through the group.
    Answered,
    /// It was silent for too long.
    Silent,
    /// It answers, and was not heard through the group for long.
    Unheard,
    /// It did not answer while it was suspected.
    Unanswered,
    /// It leaves, or another life of it takes its place.
    Parted,
}

/// What is told about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Suspected,
    Refuted,
    Degraded,
    Restored,
    Failed,
    Left,
}

/// Where a sign leads; `None` is out of the group.
/// Requirements: `R-MEMBER-8` to `R-MEMBER-11`.
pub(super) fn step(state: MemberState, sign: Sign) -> (Option<MemberState>, Option<Told>) {
    use MemberState::{Alive, Degraded, Suspect};
    match (state, sign) {
        (Alive, Sign::Heard | Sign::Answered | Sign::Unanswered) => (Some(Alive), None),
        (Alive | Degraded, Sign::Silent) => (Some(Suspect), Some(Told::Suspected)),
        (Alive, Sign::Unheard) => (Some(Degraded), Some(Told::Degraded)),
        (Degraded, Sign::Heard) => (Some(Alive), Some(Told::Restored)),
        (Degraded, Sign::Answered | Sign::Unheard | Sign::Unanswered) => (Some(Degraded), None),
        (Suspect, Sign::Heard | Sign::Answered) => (Some(Alive), Some(Told::Refuted)),
        (Suspect, Sign::Silent | Sign::Unheard) => (Some(Suspect), None),
        (Suspect, Sign::Unanswered) => (None, Some(Told::Failed)),
        (_, Sign::Parted) => (None, Some(Told::Left)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Alive, Degraded, Suspect};

    const SIGNS: [Sign; 6] =
        [Sign::Heard, Sign::Answered, Sign::Silent, Sign::Unheard, Sign::Unanswered, Sign::Parted];

    /// R-MEMBER-8, R-MEMBER-9, R-MEMBER-10, R-MEMBER-11: every state with every sign.
    #[test]
    fn the_whole_table() {
        let (same, gone) = (|s| (Some(s), None), |t| (None, Some(t)));
        let rows = [
            (
                Alive,
                [
                    same(Alive),
                    same(Alive),
                    (Some(Suspect), Some(Told::Suspected)),
                    (Some(Degraded), Some(Told::Degraded)),
                    same(Alive),
                    gone(Told::Left),
                ],
            ),
            (
                Degraded,
                [
                    (Some(Alive), Some(Told::Restored)),
                    same(Degraded),
                    (Some(Suspect), Some(Told::Suspected)),
                    same(Degraded),
                    same(Degraded),
                    gone(Told::Left),
                ],
            ),
            (
                Suspect,
                [
                    (Some(Alive), Some(Told::Refuted)),
                    (Some(Alive), Some(Told::Refuted)),
                    same(Suspect),
                    same(Suspect),
                    gone(Told::Failed),
                    gone(Told::Left),
                ],
            ),
        ];
        for (state, expected) in rows {
            for (sign, expected) in SIGNS.into_iter().zip(expected) {
                assert_eq!(step(state, sign), expected, "{state:?}, {sign:?}");
            }
        }
    }

    /// R-MEMBER-9: nobody fails without having been suspected, and nothing is told without a change.
    #[test]
    fn only_suspects_fail_and_only_changes_are_told() {
        for state in [Alive, Degraded, Suspect] {
            for sign in SIGNS {
                let (to, told) = step(state, sign);
                assert_eq!(told.is_some(), to != Some(state), "{state:?}, {sign:?}");
                assert!(told != Some(Told::Failed) || state == Suspect);
            }
        }
    }
}
