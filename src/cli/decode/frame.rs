//! What a qcast frame says about itself.

use qcast_proto::addr::PeerAddr;
use qcast_proto::wire::control::{
    self, Announce, Gone, Heartbeat, Nak, Released, Status, is_sound_name,
};
use qcast_proto::wire::frame::{Frame, FrameError, FrameKind};
use qcast_proto::wire::member;
use serde_json::{Map, Value, json};

use super::control_group;

/// The fields of the frame in a payload; `None` if the payload belongs to another program. A payload
/// that begins like a frame and is none says why.
pub(super) fn fields(payload: &[u8]) -> Option<Value> {
    let frame = match Frame::new_checked(payload) {
        Ok(frame) => frame,
        Err(FrameError::Foreign) => return None,
        Err(FrameError::Short(len)) if len < 2 => return None,
        Err(error) => return Some(json!({ "error": error.to_string() })),
    };
    let header = frame.header();
    let mut fields = Map::new();
    let mut set = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    set("kind", header.kind.name().into());
    set("domain", header.domain.0.into());
    set("group", header.group.to_string().into());
    set("session", header.session.to_string().into());
    set("stream", header.stream.0.into());
    match header.kind {
        FrameKind::Data => {
            set("sequence", header.sequence.0.into());
            set("messages", frame.messages().count().into());
            set("message_bytes", frame.messages().map(<[u8]>::len).sum::<usize>().into());
        }
        FrameKind::Fragment => {
            set("sequence", header.sequence.0.into());
            if let Some((fragment, piece)) = frame.fragment() {
                set("message_len", fragment.message_len.into());
                set("offset", fragment.offset.into());
                set("index", fragment.index.into());
                set("piece_bytes", piece.len().into());
            }
        }
        _ => match body(header.kind, frame.body()) {
            Ok(body) => {
                set("body", body);
            }
            Err(error) => {
                set("error", error.to_string().into());
            }
        },
    }
    Some(Value::Object(fields))
}

fn body(kind: FrameKind, bytes: &[u8]) -> Result<Value, FrameError> {
    Ok(match kind {
        FrameKind::Heartbeat => heartbeat(&control::decode(bytes)?),
        FrameKind::Announce => {
            let a: Announce = control::decode(bytes)?;
            let address = PeerAddr::from(a.address);
            json!({
                "node": format!("{:032x}", a.node),
                "incarnation": a.incarnation,
                "name": name(&a.name),
                "topic": name(&a.topic),
                "address": address.gid.ip().to_string(),
                "udp_port": address.udp_port,
                "qpn": address.qpn.get(),
                "age_us": a.age_us,
                "first": a.first,
                "heartbeat": heartbeat(&a.heartbeat),
            })
        }
        FrameKind::Status => {
            let s: Status = control::decode(bytes)?;
            json!({
                "node": format!("{:032x}", s.node),
                "name": name(&s.name),
                "next": s.next,
                "edge": s.edge,
                "echo": s.echo,
                "held_us": s.held_us,
                "headroom": s.headroom,
                "reliable": s.reliable,
                "leaving": s.leaving,
                "tag": s.tag,
            })
        }
        FrameKind::Nak => {
            let nak: Nak = control::decode(bytes)?;
            let missing: u64 = nak.ranges().map(|(_, lack)| u64::from(lack)).sum();
            json!({
                "missing": missing,
                "ranges": nak.ranges().collect::<Vec<_>>(),
                "local": nak.local,
            })
        }
        FrameKind::Gone => json!({ "oldest": control::decode::<Gone>(bytes)?.oldest }),
        FrameKind::Released => {
            let r: Released = control::decode(bytes)?;
            json!({ "node": format!("{:032x}", r.node), "waited_ms": r.waited_ms })
        }
        FrameKind::GroupNotice => control_group::notice(bytes)?,
        FrameKind::Service => control_group::services(bytes)?,
        FrameKind::ServiceQuery => control_group::query(bytes)?,
        FrameKind::Beacon => {
            let b: member::Beacon = control::decode(bytes)?;
            json!({
                "node": format!("{:032x}", b.node),
                "incarnation": b.incarnation,
                "interval_ms": b.interval_ms,
                "members": b.members,
                "sum": format!("{:08x}", b.sum),
                "fresh": b.fresh,
                "leaving": b.leaving,
                "echo": b.echo,
                "progress": b.progress.map(|p| json!({
                    "sent": p.sent,
                    "received": p.received,
                    "lost": p.lost,
                    "waiting": p.waiting,
                })),
                "detail": b.detail.map(|d| {
                    let address = PeerAddr::from(d.address);
                    json!({
                        "name": name(&d.name),
                        "host": name(&d.host),
                        "address": address.gid.ip().to_string(),
                        "udp_port": address.udp_port,
                        "qpn": address.qpn.get(),
                        "role": d.role,
                        "metadata": name(&d.metadata.replace('\n', " ")),
                    })
                }),
            })
        }
        FrameKind::Probe => {
            let p: member::Probe = control::decode(bytes)?;
            json!({
                "node": format!("{:032x}", p.node),
                "to": format!("{:032x}", p.to),
                "suspect": p.suspect,
                "unheard": p.unheard,
            })
        }
        FrameKind::Roster => {
            let r: member::Roster = control::decode(bytes)?;
            json!({
                "node": format!("{:032x}", r.node),
                "bucket": r.bucket,
                "ask": r.ask,
                "entries": r.entries.len(),
            })
        }
        FrameKind::Digest => {
            let d: member::Digest = control::decode(bytes)?;
            json!({ "node": format!("{:032x}", d.node), "sums": d.sums.len() })
        }
        // A query has no body; what a later version may put there is not for this one.
        _ => json!({ "bytes": bytes.len() }),
    })
}

fn heartbeat(h: &Heartbeat) -> Value {
    json!({
        "next": h.next,
        "oldest": h.oldest,
        "stamp": h.stamp,
        "rtt_us": h.rtt_us,
        "receivers": h.receivers,
        "wanted": h.wanted,
        "end": h.end,
    })
}

/// A peer's text as it may be shown: nothing that a terminal obeys.
pub(super) fn text(text: &str) -> String {
    if text.chars().any(char::is_control) { text.escape_debug().collect() } else { text.to_owned() }
}

/// A peer's name, in the same way.
fn name(name: &str) -> String {
    if is_sound_name(name) { name.to_owned() } else { name.escape_debug().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qcast_proto::addr::{Domain, GroupTag, Sequence, SessionId, StreamId};
    use qcast_proto::wire::frame::{FRAME_HEADER, FrameHeader};

    fn frame(kind: FrameKind, body: &[u8]) -> Vec<u8> {
        let header = FrameHeader {
            kind,
            domain: Domain(3),
            group: GroupTag(0x0102_0304),
            stream: StreamId(1),
            session: SessionId(0xabcd),
            sequence: Sequence(77),
        };
        let mut bytes = vec![0; FRAME_HEADER];
        header.emit(&mut bytes);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn data_frames() {
        let fields = fields(&frame(FrameKind::Data, b"\0\x02hi\0\0")).unwrap();
        assert_eq!(
            fields,
            json!({
                "kind": "data", "domain": 3, "group": "01020304", "session": "000000000000abcd",
                "stream": 1, "sequence": 77, "messages": 2, "message_bytes": 2,
            })
        );
    }

    #[test]
    fn control_frames_show_their_bodies() {
        let mut body = [0; 256];
        let nak = Nak { base: 5, runs: vec![(0, 2), (3, 1)], local: true };
        let len = control::encode(&nak, &mut body).unwrap();
        let shown = fields(&frame(FrameKind::Nak, &body[..len])).unwrap();
        assert_eq!(
            shown["body"],
            json!({"missing": 3, "ranges": [[5, 2], [10, 1]], "local": true})
        );
        let status = Status { name: "a\u{1b}[2Jb".into(), ..Status::default() };
        let len = control::encode(&status, &mut body).unwrap();
        let shown = fields(&frame(FrameKind::Status, &body[..len])).unwrap();
        assert_eq!(shown["body"]["name"], "a\\u{1b}[2Jb");
    }

    #[test]
    fn what_is_no_frame_is_none_or_says_why() {
        assert_eq!(fields(b""), None);
        assert_eq!(fields(b"xyz"), None);
        assert_eq!(fields(&[b'x'; 64]), None);
        assert_eq!(fields(b"qc\x01").unwrap()["error"], "cut short: 3 bytes");
        let mut bytes = frame(FrameKind::Data, b"\0\x09hi");
        assert_eq!(fields(&bytes).unwrap()["error"], "the messages do not fill the frame");
        bytes[2] = 9;
        assert_eq!(fields(&bytes).unwrap()["error"], "frame version 9, and this is version 1");
        let nak = fields(&frame(FrameKind::Nak, b"\xff")).unwrap();
        assert_eq!(
            (&nak["kind"], &nak["error"]),
            (&json!("nak"), &json!("the control body cannot be decoded"))
        );
    }
}
