//! Any mask at all: the verdict is the reference's, and nothing panics.

use proptest::prelude::*;
use qcast_proto::qp::{QpState, QpType, explain};

use crate::exhaustive::verdict;
use crate::reference::Reference;

/// Masks that are often close to a legal one, and now and then anything.
fn masks() -> impl Strategy<Value = u32> {
    let rows: Vec<_> = Reference::read().rows.into_values().collect();
    prop_oneof![
        any::<u32>(),
        any::<u32>().prop_map(|mask| mask & 0x21f_ffff),
        (prop::sample::select(rows), any::<u32>(), 0..4_u32)
            .prop_map(|((required, optional), some, special)| required | optional & some | special),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_mask_gets_the_kernels_verdict(
        qp_type in prop::sample::select(&QpType::ALL[..]),
        held in 0..7_u32,
        state in 0..7_u32,
        cur_state in 0..7_u32,
        mask in masks(),
    ) {
        prop_assert_eq!(
            verdict(qp_type, held, mask, state, cur_state),
            Reference::read().verdict(qp_type.name(), held, mask, state, cur_state)
        );
    }

    #[test]
    fn any_pair_can_be_explained(
        qp_type in prop::sample::select(&QpType::ALL[..]),
        from in prop::sample::select(&QpState::ALL[..]),
        to in prop::sample::select(&QpState::ALL[..]),
    ) {
        let text = explain(qp_type, from, to).to_string();
        let start = format!("{qp_type} {from}->{to}: ");
        prop_assert!(text.starts_with(&start));
    }
}
