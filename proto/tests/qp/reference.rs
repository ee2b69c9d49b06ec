//! The kernel's rules stated a second time, on purpose with nothing of the crate's: the table is text,
//! states and bits are plain numbers, and the verdict follows the rules as they are written down.

use std::collections::BTreeMap;

const TABLE: &str = include_str!("table.txt");

pub(crate) const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];

/// Bit numbers of the kernel's `enum ib_qp_attr_mask`.
pub(crate) const BITS: [(&str, u32); 22] = [
    ("STATE", 0),
    ("CUR_STATE", 1),
    ("EN_SQD_ASYNC_NOTIFY", 2),
    ("ACCESS_FLAGS", 3),
    ("PKEY_INDEX", 4),
    ("PORT", 5),
    ("QKEY", 6),
    ("AV", 7),
    ("PATH_MTU", 8),
    ("TIMEOUT", 9),
    ("RETRY_CNT", 10),
    ("RNR_RETRY", 11),
    ("RQ_PSN", 12),
    ("MAX_QP_RD_ATOMIC", 13),
    ("ALT_PATH", 14),
    ("MIN_RNR_TIMER", 15),
    ("SQ_PSN", 16),
    ("MAX_DEST_RD_ATOMIC", 17),
    ("PATH_MIG_STATE", 18),
    ("CAP", 19),
    ("DEST_QPN", 20),
    ("RATE_LIMIT", 25),
];

pub(crate) const STATE: u32 = 1;
pub(crate) const CUR_STATE: u32 = 2;

/// The bits of `A,B,C`; `-` is none.
pub(crate) fn bits(names: &str) -> u32 {
    names
        .split(',')
        .filter(|&name| name != "-")
        .map(|name| {
            let &(_, bit) = BITS.iter().find(|&&(known, _)| known == name).expect(name);
            1 << bit
        })
        .sum()
}

pub(crate) struct Reference {
    /// By type's name, from and to: required and optional bits.
    pub(crate) rows: BTreeMap<(&'static str, u32, u32), (u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed,
    CurStateMisuse,
    NotAStep,
    Attributes { missing: u32, foreign: u32 },
}

impl Reference {
    pub(crate) fn read() -> Self {
        let number = |name| STATES.iter().position(|&state| state == name).expect(name) as u32;
        let mut rows = BTreeMap::new();
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let [qp_type, from, to, required, optional] =
                line.split(' ').collect::<Vec<_>>().try_into().expect(line);
            let row = (bits(required), bits(optional));
            let before = rows.insert((qp_type, number(from), number(to)), row);
            assert!(before.is_none(), "twice in the table: {line}");
        }
        Self { rows }
    }

    pub(crate) fn row(&self, qp_type: &'static str, from: u32, to: u32) -> Option<(u32, u32)> {
        self.rows.get(&(qp_type, from, to)).copied()
    }

    pub(crate) fn verdict(
        &self,
        qp_type: &'static str,
        held: u32,
        mask: u32,
        state: u32,
        cur_state: u32,
    ) -> Verdict {
        let cur = if mask & CUR_STATE != 0 { cur_state } else { held };
        let next = if mask & STATE != 0 { state } else { cur };
        if mask & CUR_STATE != 0 && !["RTR", "RTS", "SQD", "SQE"].contains(&STATES[cur as usize]) {
            return Verdict::CurStateMisuse;
        }
        let Some((required, optional)) = self.row(qp_type, cur, next) else {
            return Verdict::NotAStep;
        };
        let missing = required & !mask;
        let foreign = mask & !(required | optional | STATE);
        if missing == 0 && foreign == 0 {
            Verdict::Allowed
        } else {
            Verdict::Attributes { missing, foreign }
        }
    }
}
