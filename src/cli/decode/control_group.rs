//! What frames of the control group say.

use qcast_proto::addr::Gid;
use qcast_proto::wire::control::decode;
use qcast_proto::wire::frame::FrameError;
use qcast_proto::wire::notice::GroupNotice;
use qcast_proto::wire::service::{ServiceQuery, Services};
use serde_json::{Value, json};

use super::frame::text;

pub(super) fn notice(bytes: &[u8]) -> Result<Value, FrameError> {
    let n: GroupNotice = decode(bytes)?;
    let groups = n.groups.iter().map(|g| {
        json!({
            "name": text(&g.name),
            "key": format!("{:02x}", g.checks.key),
            "partition": format!("{:02x}", g.checks.partition),
            "address": format!("{:02x}", g.checks.address),
            "mtu": g.checks.mtu,
            "members": g.members,
            "left": g.left,
        })
    });
    Ok(json!({
        "node": format!("{:032x}", n.node),
        "incarnation": n.incarnation,
        "at_us": n.at,
        "name": text(&n.name),
        "period_ms": n.period_ms,
        "asks": n.asks,
        "groups": groups.collect::<Vec<_>>(),
    }))
}

pub(super) fn services(bytes: &[u8]) -> Result<Value, FrameError> {
    let s: Services = decode(bytes)?;
    let records = s.records.iter().map(|r| {
        let metadata: serde_json::Map<String, Value> =
            r.metadata.iter().map(|(key, value)| (text(key), text(value).into())).collect();
        json!({
            "type": text(&r.kind),
            "name": text(&r.name),
            "address": Gid::from_bytes(r.address).ip(),
            "port": r.port,
            "ttl_ms": r.ttl_ms,
            "withdrawn": r.withdrawn,
            "metadata": metadata,
        })
    });
    Ok(json!({
        "node": format!("{:032x}", s.node),
        "incarnation": s.incarnation,
        "at_us": s.at,
        "name": text(&s.name),
        "records": records.collect::<Vec<_>>(),
    }))
}

pub(super) fn query(bytes: &[u8]) -> Result<Value, FrameError> {
    let q: ServiceQuery = decode(bytes)?;
    Ok(json!({
        "node": format!("{:032x}", q.node),
        "incarnation": q.incarnation,
        "type": text(&q.kind),
        "name": text(&q.name),
        "probe": q.probe,
        "known": q.known.len(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use qcast_proto::wire::control::encode;
    use qcast_proto::wire::notice::GroupEntry;
    use qcast_proto::wire::service::Record;

    #[test]
    fn bodies_are_shown_with_nothing_that_a_terminal_obeys() {
        let mut out = [0; 480];
        let entry = GroupEntry { name: "g\u{7}".into(), members: 3, ..GroupEntry::default() };
        let body = GroupNotice {
            name: "n".into(),
            groups: [entry].into_iter().collect(),
            ..GroupNotice::default()
        };
        let len = encode(&body, &mut out).unwrap();
        let shown = notice(&out[..len]).unwrap();
        assert_eq!(shown["groups"][0]["name"], "g\\u{7}");
        assert_eq!(shown["groups"][0]["members"], 3);

        let record = Record {
            kind: "http".into(),
            name: "web".into(),
            address: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 7)).to_bytes(),
            metadata: [("k".into(), "\u{1b}[2J".into())].into_iter().collect(),
            ..Record::default()
        };
        let body = Services { records: [record].into_iter().collect(), ..Services::default() };
        let len = encode(&body, &mut out).unwrap();
        let shown = services(&out[..len]).unwrap();
        assert_eq!(shown["records"][0]["address"], "10.0.0.7");
        assert_eq!(shown["records"][0]["metadata"]["k"], "\\u{1b}[2J");

        let body = ServiceQuery { kind: "http".into(), probe: true, ..ServiceQuery::default() };
        let len = encode(&body, &mut out).unwrap();
        assert_eq!(query(&out[..len]).unwrap()["probe"], true);
        assert!(query(&out[..len - 1]).is_err());
    }
}
