//! The table told to people: one step in words, or the whole as a Graphviz drawing.

use alloc::string::String;
use core::fmt::{self, Write};

use super::{AttrMask, QpState, QpType, pairs, path, transition};

/// One pair of states explained: what the step needs and takes and what each attribute says, or
/// which legal walk stands for it. Displays as a few lines of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    qp_type: QpType,
    from: QpState,
    to: QpState,
}

/// Explains the step of a `qp_type` queue pair from `from` to `to`, or why there is none.
pub const fn explain(qp_type: QpType, from: QpState, to: QpState) -> Explanation {
    Explanation { qp_type, from, to }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { qp_type, from, to } = *self;
        let Some(row) = transition(qp_type, from, to) else {
            write!(f, "{qp_type} {from}->{to}: not a legal step")?;
            return match path(from, to) {
                _ if from == to => write!(f, "\n  nothing can be changed while staying in {from}"),
                Some(path) => write!(f, "\n  go {path}"),
                None => write!(f, "\n  no modify can target {to}"),
            };
        };
        write!(f, "{qp_type} {from}->{to}: mask {:#x} at the least", row.mask().bits())?;
        for (word, set) in [("must", row.required), ("may", row.optional)] {
            for one in set.iter() {
                let (name, about) = (one.name().unwrap_or("?"), one.about().unwrap_or("?"));
                write!(f, "\n  {word:<4} {name}: {about}")?;
            }
        }
        if (row.required | row.optional).is_empty() {
            write!(f, "\n  takes nothing but STATE")?;
        }
        Ok(())
    }
}

/// The state machine of `qp_type` as a Graphviz `digraph`: solid edges are modifies, labelled with
/// what they must carry and, in brackets, what they may; dashed ones happen by themselves.
pub fn graph(qp_type: QpType) -> String {
    let mut out = String::new();
    write_graph(&mut out, qp_type).expect("writing to a String does not fail");
    out
}

fn write_graph(out: &mut String, qp_type: QpType) -> fmt::Result {
    writeln!(out, "digraph {qp_type} {{")?;
    writeln!(out, "  rankdir=LR;")?;
    for state in QpState::ALL {
        writeln!(out, "  {state};")?;
    }
    for (from, to) in pairs() {
        let row = transition(qp_type, from, to).expect("a listed pair is legal");
        write!(out, "  {from} -> {to} [label=\"")?;
        write_names(out, row.required)?;
        if !row.optional.is_empty() {
            out.push_str(if row.required.is_empty() { "[" } else { "\\n[" });
            write_names(out, row.optional)?;
            out.push(']');
        }
        writeln!(out, "\"];")?;
    }
    if qp_type != QpType::Rc {
        writeln!(out, "  RTS -> SQE [style=dashed, label=\"a send fails\"];")?;
    }
    writeln!(out, "  RTS -> ERR [style=dashed, label=\"a fatal error\"];")?;
    writeln!(out, "}}")
}

fn write_names(out: &mut String, set: AttrMask) -> fmt::Result {
    for (n, one) in set.iter().enumerate() {
        write!(out, "{}{one}", if n > 0 { "\\n" } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_step_is_told_with_its_attributes() {
        assert_eq!(
            explain(QpType::Ud, QpState::Rtr, QpState::Rts).to_string(),
            "UD RTR->RTS: mask 0x10001 at the least\n  \
             must SQ_PSN: the first packet sequence number to send\n  \
             may  CUR_STATE: the state the caller believes the QP is in\n  \
             may  QKEY: the queue key that a datagram must carry to be delivered"
        );
        assert_eq!(
            explain(QpType::Rc, QpState::Sqe, QpState::Rts).to_string(),
            "RC SQE->RTS: mask 0x1 at the least\n  takes nothing but STATE"
        );
    }

    #[test]
    fn what_is_no_step_is_told_with_the_way() {
        let told = |from, to| explain(QpType::Ud, from, to).to_string();
        assert!(told(QpState::Err, QpState::Rtr).ends_with("go ERR->RESET->INIT->RTR"));
        assert!(told(QpState::Rts, QpState::Sqe).ends_with("no modify can target SQE"));
        assert!(told(QpState::Rtr, QpState::Rtr).ends_with("while staying in RTR"));
    }

    #[test]
    fn a_graph_has_every_legal_step_as_one_edge() {
        for qp_type in QpType::ALL {
            let graph = graph(qp_type);
            let solid = graph.lines().filter(|l| l.contains("->") && !l.contains("dashed"));
            assert_eq!(solid.count(), pairs().count());
            for (from, to) in pairs() {
                assert!(
                    graph.contains(&std::format!("  {from} -> {to} [")),
                    "{qp_type} {from} {to}"
                );
            }
            assert_eq!(graph.matches('{').count(), graph.matches('}').count());
        }
        assert!(graph(QpType::Ud).contains("RTS -> SQE [style=dashed"));
        assert!(!graph(QpType::Rc).contains("-> SQE"));
        assert!(
            graph(QpType::Ud).contains("RTR -> RTS [label=\"SQ_PSN\\n[CUR_STATE\\nQKEY]\"];"),
            "{}",
            graph(QpType::Ud)
        );
    }
}
