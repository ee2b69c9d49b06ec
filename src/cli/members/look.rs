//! One look at who is in a group: a table, or an object.

use std::thread;
use std::time::Duration;

use qcast::{Group, NodeEvents};

use super::super::clock::now;
use super::super::exit::Failure;
use super::super::output::{Notes, Output};
use super::super::signals::Interrupt;
use super::progress::Rates;
use super::row::{Row, Sort, brief};
use super::told::{Told, rows, view_json};

/// How long one wait is before signals are looked at.
const SLICE: Duration = Duration::from_millis(20);

/// Gives the members time to be heard, and prints them.
pub(super) fn look(
    group: &Group,
    events: &NodeEvents,
    settle: Duration,
    json: bool,
    interrupt: &Interrupt,
    out: &mut Output,
) -> Result<(), Failure> {
    let deadline = now() + settle;
    while now() < deadline && !interrupt.is_asked() {
        thread::sleep(SLICE.min(deadline.saturating_duration_since(now())));
    }
    let view = group.members();
    let happened: Vec<_> =
        std::iter::from_fn(|| events.try_recv().ok().flatten()).map(|e| Told::node(&e)).collect();
    if json {
        let mut object = view_json(&view, group);
        object["events"] = happened.iter().map(Told::json).collect();
        out.json(&object)?;
    } else {
        let mut rows = rows(&view, &Rates::default(), group.node());
        rows.sort_by(|a, b| Sort::Name.compare(a, b));
        for line in table(&rows) {
            out.line(line.as_bytes())?;
        }
    }
    out.flush()?;
    let notes = Notes::default();
    for told in &happened {
        notes.say(&told.text);
    }
    if view.members.len() < 2 {
        notes.say(format_args!(
            "nobody else was heard in {} ({}); its members have the same --domain, and the same --qkey \
             or secret",
            group.name(),
            group.mgid()
        ));
    }
    Ok(())
}

/// The table, with a line of names of columns.
fn table(rows: &[Row]) -> Vec<String> {
    let head =
        ["MEMBER", "STATE", "ROLE", "RTT", "HEARD", "PROGRESS", "HOST", "ADDRESS", "METADATA"];
    let mut cells = vec![head.map(str::to_owned)];
    cells.extend(rows.iter().map(|row| {
        [
            if row.own { format!("{} *", row.name) } else { row.name.clone() },
            row.state.as_str().to_owned(),
            row.role.to_owned(),
            row.rtt.map_or("-".into(), brief),
            if row.own { "-".into() } else { brief(row.heard) },
            if row.progress.is_empty() { "-".into() } else { row.progress.clone() },
            row.host.clone(),
            row.address.clone(),
            row.metadata.clone(),
        ]
    }));
    let widths: Vec<_> = (0..head.len())
        .map(|column| cells.iter().map(|row| width(&row[column])).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 9]| {
        let padded = row.iter().zip(&widths).map(|(cell, wide)| {
            let padding = " ".repeat(wide - width(cell));
            format!("{cell}{padding}")
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    cells.iter().map(line).collect()
}

fn width(text: &str) -> usize {
    ratatui::text::Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::row;
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let mut wide = row("日本");
        wide.own = true;
        let table = table(&[row("a-longer-name"), wide]);
        let expected = [
            "MEMBER         STATE  ROLE       RTT   HEARD  PROGRESS        HOST    ADDRESS         METADATA",
            "a-longer-name  alive  publisher  87us  120ms  out 1200 310/s  host-a  127.0.1.2:4791  rack=7 gpu=2",
            "日本 *         alive  publisher  87us  -      out 1200 310/s  host-a  127.0.1.2:4791  rack=7 gpu=2",
        ];
        assert_eq!(table, expected);
    }
}
