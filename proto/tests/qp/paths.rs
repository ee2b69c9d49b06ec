//! Walks: as short as any, legal at every hop, and never by way of SQE.

use qcast_proto::qp::{AttrMask, QpState, QpType, path, reset_walk, walk_to_rts};

use crate::reference::Reference;

/// The fewest steps from `from` to `to` over the reference's rows, by trying every walk that does
/// not repeat a state.
fn fewest(reference: &Reference, from: u32, to: u32, seen: &[u32]) -> Option<usize> {
    if from == to {
        return Some(0);
    }
    (0..7)
        .filter(|next| !seen.contains(next) && reference.row("UD", from, *next).is_some())
        .filter_map(|next| fewest(reference, next, to, &[seen, &[next]].concat()))
        .min()
        .map(|steps| steps + 1)
}

#[test]
fn every_path_is_legal_and_the_shortest() {
    let reference = Reference::read();
    for from in QpState::ALL {
        for to in QpState::ALL {
            let found = path(from, to);
            if to == QpState::Sqe {
                assert_eq!(found, None, "no modify can target SQE");
                continue;
            }
            let found = found.unwrap();
            assert_eq!((found.from(), found.to()), (from, to));
            let best = fewest(&reference, from.raw(), to.raw(), &[from.raw()]);
            assert_eq!(Some(found.steps()), best, "{found}");
            for qp_type in QpType::ALL {
                for hop in found.hops(qp_type) {
                    assert_ne!(hop.to, QpState::Sqe);
                    let row = reference.row(qp_type.name(), hop.from.raw(), hop.to.raw()).unwrap();
                    assert_eq!(hop.transition.mask().bits(), row.0 | 1);
                }
            }
        }
    }
}

fn masks(walk: &qcast_proto::qp::Path) -> Vec<u32> {
    walk.hops(QpType::Ud).map(|hop| hop.transition.mask().bits()).collect()
}

/// Case 17: one modify from SQE; the whole walk from ERR.
#[test]
fn recovery_takes_the_cheapest_walk() {
    let walked = |from| {
        let walk = walk_to_rts(from);
        (walk.to_string(), masks(&walk))
    };
    assert_eq!(walked(QpState::Sqe), ("SQE->RTS".into(), vec![0x1]));
    assert_eq!(walked(QpState::Sqd), ("SQD->RTS".into(), vec![0x1]));
    assert_eq!(walked(QpState::Rts), ("RTS".into(), vec![]));
    assert_eq!(walked(QpState::Rtr), ("RTR->RTS".into(), vec![0x1_0001]));
    assert_eq!(
        walked(QpState::Err),
        ("ERR->RESET->INIT->RTR->RTS".into(), vec![0x1, 0x71, 0x1, 0x1_0001])
    );
}

/// Case 1: a queue pair in RESET is not reset again.
#[test]
fn a_reset_walk_has_no_redundant_reset() {
    let fresh = reset_walk(QpState::Reset);
    assert_eq!(masks(&fresh), [0x71, 0x1, 0x1_0001]);
    for from in QpState::ALL.into_iter().filter(|&from| from != QpState::Reset) {
        let walk = reset_walk(from);
        assert_eq!(walk.to_string(), format!("{from}->RESET->INIT->RTR->RTS"));
        assert_eq!(masks(&walk), [0x1, 0x71, 0x1, 0x1_0001]);
    }
}

#[test]
fn connected_walks_need_their_peer() {
    let rtr = |qp_type| {
        walk_to_rts(QpState::Reset)
            .hops(qp_type)
            .find(|hop| hop.to == QpState::Rtr)
            .unwrap()
            .transition
            .required
    };
    for qp_type in [QpType::Uc, QpType::Rc] {
        assert!(rtr(qp_type).contains(AttrMask::AV | AttrMask::DEST_QPN));
    }
    assert!(rtr(QpType::Ud).is_empty());
}
