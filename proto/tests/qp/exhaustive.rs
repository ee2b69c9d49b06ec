//! Every type × state × state, and around each pair's masks every single-bit change.

use std::collections::BTreeSet;

use qcast_proto::qp::{
    AttrMask, QpState, QpType, Request, TransitionError, check_request, pairs, successors,
    transition,
};

use crate::reference::{BITS, CUR_STATE, Reference, STATE, STATES, Verdict};

/// What the crate says, in the reference's terms.
pub(crate) fn verdict(
    qp_type: QpType,
    held: u32,
    mask: u32,
    state: u32,
    cur_state: u32,
) -> Verdict {
    let named = |raw| QpState::from_raw(raw).expect("one of the seven");
    let request = Request::new(
        (mask & STATE != 0).then(|| named(state)),
        (mask & CUR_STATE != 0).then(|| named(cur_state)),
        AttrMask::from_bits(mask),
    );
    assert_eq!(request.mask().bits(), mask);
    match check_request(qp_type, named(held), request) {
        Ok(step) => {
            let from = if mask & CUR_STATE != 0 { cur_state } else { held };
            assert_eq!(step.from().raw(), from);
            assert_eq!(step.to().raw(), if mask & STATE != 0 { state } else { from });
            assert_eq!(step.mask().bits(), mask);
            Verdict::Allowed
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
            assert!(text.starts_with(qp_type.name()), "{text}");
            assert!(text.contains(&request.mask().to_string()), "{text}");
            match error {
                TransitionError::IllegalTransition { .. } => Verdict::NotAStep,
                TransitionError::Attributes { missing, foreign, .. } => {
                    for one in missing.iter().chain(foreign.iter()) {
                        assert!(text.contains(&one.to_string()), "{one} is not named: {text}");
                    }
                    Verdict::Attributes { missing: missing.bits(), foreign: foreign.bits() }
                }
                TransitionError::CurStateMisuse { .. } => Verdict::CurStateMisuse,
                other => panic!("a kind that the reference does not know: {other:?}"),
            }
        }
    }
}

#[test]
fn names_numbers_and_bits_are_the_kernels() {
    for (raw, name) in (0..).zip(STATES) {
        assert_eq!(QpState::from_raw(raw).unwrap().name(), name);
    }
    for (name, bit) in BITS {
        assert_eq!(AttrMask::from_name(name), Some(AttrMask::from_bits(1 << bit)), "{name}");
    }
    assert_eq!(AttrMask::all_named().len() as usize, BITS.len());
}

#[test]
fn the_table_is_the_kernels() {
    let reference = Reference::read();
    let legal: BTreeSet<_> = pairs().collect();
    assert_eq!(legal.len(), 22);
    assert_eq!(pairs().count(), 22, "no pair twice");
    assert!(pairs().is_sorted());
    assert_eq!(reference.rows.len(), 3 * 22);
    for qp_type in QpType::ALL {
        for from in QpState::ALL {
            for to in QpState::ALL {
                let row = transition(qp_type, from, to);
                assert_eq!(row.is_some(), legal.contains(&(from, to)));
                assert_eq!(row.is_some(), successors(from).any(|next| next == to));
                assert_eq!(
                    row.map(|row| (row.required.bits(), row.optional.bits())),
                    reference.row(qp_type.name(), from.raw(), to.raw()),
                    "{qp_type} {from}->{to}"
                );
            }
        }
    }
}

/// Around the required set, the required and optional set, and the empty set of a step: each as it
/// is and with each of the 32 bits flipped, with and without STATE and CUR_STATE, CUR_STATE claiming
/// each of the states. Issue 2, part 2; vector 1 of the suggested ones.
#[test]
fn every_single_bit_change_gets_the_kernels_verdict() {
    let reference = Reference::read();
    let (mut allowed, mut refused) = (0_u32, 0_u32);
    for qp_type in QpType::ALL {
        for held in 0..7 {
            for cur_state in 0..7 {
                for state in 0..7 {
                    for special in [0, STATE, CUR_STATE, STATE | CUR_STATE] {
                        let from = if special & CUR_STATE != 0 { cur_state } else { held };
                        let to = if special & STATE != 0 { state } else { from };
                        let (required, optional) =
                            reference.row(qp_type.name(), from, to).unwrap_or_default();
                        for base in [0, required, required | optional & !CUR_STATE] {
                            let base = base | special;
                            let flips = (0..32).map(|bit| base ^ 1 << bit);
                            for mask in flips.chain([base]) {
                                let (ours, kernels) = (
                                    verdict(qp_type, held, mask, state, cur_state),
                                    reference.verdict(qp_type.name(), held, mask, state, cur_state),
                                );
                                assert_eq!(
                                    ours, kernels,
                                    "{qp_type} held {held}, mask {mask:#x}, state {state}, \
                                     cur_state {cur_state}"
                                );
                                let counter = if ours == Verdict::Allowed {
                                    &mut allowed
                                } else {
                                    &mut refused
                                };
                                *counter += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    // 3 types × 7 held × 7 claimed × 7 wanted × 4 × 3 bases × 33 masks: nothing was left out, and
    // neither verdict is the only one.
    assert_eq!(allowed + refused, 3 * 7 * 7 * 7 * 4 * 3 * 33);
    assert!(allowed > 10_000 && refused > 10_000, "{allowed} allowed, {refused} refused");
}
