//! Members and what happens to them in words and in JSON: what the live view, `join` and `chat` have in common.

use std::time::Duration;

use qcast::{
    Member, MemberEvent, MemberInfo, MemberState, Node, NodeEvent, Role, View, ViewChange,
};
use serde_json::{Map, Value, json};

use super::super::clock::{time_of_day, unix};
use super::super::happenings;
use super::super::shown::{pairs, shown};
use super::board::{Entry, Weight};
use super::progress::{Rate, Rates, words};
use super::row::{Row, State};

/// A member as a row of a table.
fn row(member: &Member, rate: Option<Rate>, node: &Node) -> Row {
    let info = &*member.info;
    Row {
        id: info.node.to_string(),
        name: shown(&info.name).into_owned(),
        host: shown(&info.host).into_owned(),
        address: address(info),
        incarnation: info.incarnation,
        role: role(info.role),
        state: state(member.state),
        rtt: member.rtt,
        heard: node.now().saturating_since(member.heard),
        progress: member.progress.map_or_else(String::new, |progress| words(&progress, rate)),
        behind: member.progress.map_or(0, |p| p.waiting.saturating_add(p.lost)),
        metadata: pairs(&info.metadata),
        own: member.own,
    }
}

/// All members as rows.
pub(super) fn rows(view: &View, rates: &Rates, node: &Node) -> Vec<Row> {
    view.members.iter().map(|member| row(member, rates.of(member.info.node), node)).collect()
}

fn state(state: MemberState) -> State {
    match state {
        MemberState::Alive => State::Alive,
        MemberState::Degraded => State::Degraded,
        MemberState::Suspect => State::Suspect,
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Observer => "observer",
        Role::Subscriber => "subscriber",
        Role::Publisher => "publisher",
        Role::Both => "both",
    }
}

fn address(info: &MemberInfo) -> String {
    format!("{}:{}", info.address.gid.ip(), info.address.udp_port)
}

/// What a member says of itself, as an object.
fn info_json(info: &MemberInfo) -> Map<String, Value> {
    let metadata: Map<_, _> =
        info.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
    let object = json!({
        "name": info.name, "id": info.node.to_string(), "incarnation": info.incarnation,
        "host": info.host, "address": info.address.gid.ip(), "udp_port": info.address.udp_port,
        "qpn": info.address.qpn.get(), "role": role(info.role), "metadata": metadata,
    });
    match object {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// A member, and how this node sees it, as an object.
fn member_json(member: &Member, node: &Node) -> Value {
    let mut object = info_json(&member.info);
    let heard = node.now().saturating_since(member.heard);
    object.insert("state".into(), state(member.state).as_str().into());
    object.insert("rtt_us".into(), member.rtt.map(|rtt| rtt.as_micros() as u64).into());
    object.insert("heard_ms".into(), (heard.as_millis() as u64).into());
    let progress = member.progress.map(|p| {
        let said = node.now().saturating_since(p.at);
        json!({
            "sent": p.sent, "received": p.received, "lost": p.lost, "waiting": p.waiting,
            "said_ms": said.as_millis() as u64,
        })
    });
    object.insert("progress".into(), progress.into());
    object.insert("own".into(), member.own.into());
    object.into()
}

/// A whole view as an object.
pub(crate) fn view_json(view: &View, group: &qcast::Group) -> Value {
    let node = group.node();
    let members: Vec<_> = view.members.iter().map(|member| member_json(member, node)).collect();
    json!({
        "event": "members", "time": seconds(unix()), "group": group.name(), "mgid": group.mgid(),
        "version": view.version, "members": members,
    })
}

/// Something that happened, in every form that it may be told in.
pub(crate) struct Told {
    at: Duration,
    pub(crate) text: String,
    pub(crate) weight: Weight,
    object: Value,
}

impl Told {
    fn new(text: String, weight: Weight, object: Value) -> Self {
        Self { at: unix(), text, weight, object }
    }

    /// A change of the view, now.
    pub(crate) fn change(change: &ViewChange) -> Option<Self> {
        let (event, version) = match change {
            ViewChange::Member { event, version } => (event, version),
            ViewChange::Missed { changes } => {
                let text = format!("{changes} changes came too fast to be told");
                let object = json!({ "event": "missed", "changes": changes });
                return Some(Self::new(text, Weight::Notable, object));
            }
            _ => return None,
        };
        let mut object = json!({
            "event": "member", "change": event.name(), "version": version,
            "member": info_json(event.info()),
        });
        if let MemberEvent::Conflict { other, .. } = event {
            object["other"] = format!("{}:{}", other.gid.ip(), other.udp_port).into();
        }
        let (text, weight) = sentence(event);
        Some(Self::new(text, weight, object))
    }

    /// Something that this program did, now.
    pub(crate) fn step(text: &str) -> Self {
        Self::new(text.to_owned(), Weight::Notable, json!({ "event": "step", "text": text }))
    }

    /// Something about this node itself, now.
    pub(crate) fn node(event: &NodeEvent) -> Self {
        let text = event.to_string();
        let object = happenings::object(event).unwrap_or_else(|| {
            let mut object = json!({ "event": "node", "change": node_change(event), "text": text });
            if let NodeEvent::QKeyViolations { datagrams, groups } = event {
                (object["datagrams"], object["groups"]) = (json!(datagrams), json!(groups));
            }
            object
        });
        Self::new(shown(&text).into_owned(), Weight::Notable, object)
    }

    /// As an object with its time.
    pub(crate) fn json(&self) -> Value {
        let mut object = self.object.clone();
        object["time"] = seconds(self.at).into();
        object
    }

    /// As a line with its time.
    pub(crate) fn line(&self) -> String {
        format!("{}  {}", time_of_day(self.at), self.text)
    }

    /// As a line of the live view.
    pub(crate) fn entry(self) -> Entry {
        Entry { at: time_of_day(self.at), text: self.text, weight: self.weight }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_millis() as f64 / 1e3
}

fn sentence(event: &MemberEvent) -> (String, Weight) {
    let info = event.info();
    let name = shown(&info.name);
    let more = || {
        let metadata = pairs(&info.metadata);
        let metadata = if metadata.is_empty() { metadata } else { format!(" ({metadata})") };
        format!("{} on {}{metadata}", role(info.role), shown(&info.host))
    };
    match event {
        MemberEvent::Joined(_) => (format!("{name} joined: {}", more()), Weight::Plain),
        MemberEvent::Left(_) => (format!("{name} left"), Weight::Plain),
        MemberEvent::Suspected(_) => {
            (format!("{name} is silent: suspected, and asked"), Weight::Notable)
        }
        MemberEvent::Refuted(_) => (format!("{name} is heard again"), Weight::Plain),
        MemberEvent::Failed(_) => (format!("{name} failed: it did not answer"), Weight::Grave),
        MemberEvent::Degraded(_) => {
            let text = "answers, but what it sends to the group does not arrive here: degraded";
            (format!("{name} {text}"), Weight::Notable)
        }
        MemberEvent::Restored(_) => {
            (format!("{name} is heard through the group again"), Weight::Plain)
        }
        MemberEvent::Updated(_) => (format!("{name} changed: {}", more()), Weight::Plain),
        MemberEvent::Conflict { other, .. } => {
            let ours = address(info);
            let text = format!(
                "two nodes call themselves {name}: at {ours}, which counts, and at {}:{}; give each a \
                 name of its own",
                other.gid.ip(),
                other.udp_port
            );
            (text, Weight::Grave)
        }
        other => (format!("{name}: {}", other.name()), Weight::Notable),
    }
}

/// One word for scripts.
fn node_change(event: &NodeEvent) -> &'static str {
    match event {
        NodeEvent::Degraded { .. } => "degraded",
        NodeEvent::Restored { .. } => "restored",
        NodeEvent::DeviceLost { .. } => "device_lost",
        NodeEvent::DeviceReturned { .. } => "device_returned",
        NodeEvent::QpFailed { .. } => "qp_failed",
        NodeEvent::AddressChanged { .. } => "address_changed",
        NodeEvent::QKeyViolations { .. } => "qkey_violations",
        NodeEvent::Missed { .. } => "missed",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use qcast::NodeId;
    use qcast::proto::addr::{Gid, PeerAddr, Qpn};

    use super::*;

    fn info() -> Arc<MemberInfo> {
        let gid = Gid::from("127.0.0.2".parse::<std::net::IpAddr>().unwrap());
        Arc::new(MemberInfo {
            node: NodeId(7),
            incarnation: 3,
            name: "evil\u{1b}[2Jname\u{202e}".into(),
            host: "h\nost".into(),
            address: PeerAddr { gid, qpn: Qpn::new(17), udp_port: 4791 },
            role: Role::Both,
            metadata: vec![("k".into(), "\u{7}".into())],
        })
    }

    #[test]
    fn nothing_that_a_peer_says_reaches_the_terminal_as_it_is() {
        let info = info();
        let other = info.address;
        for event in [
            MemberEvent::Joined(Arc::clone(&info)),
            MemberEvent::Left(Arc::clone(&info)),
            MemberEvent::Suspected(Arc::clone(&info)),
            MemberEvent::Refuted(Arc::clone(&info)),
            MemberEvent::Failed(Arc::clone(&info)),
            MemberEvent::Degraded(Arc::clone(&info)),
            MemberEvent::Restored(Arc::clone(&info)),
            MemberEvent::Updated(Arc::clone(&info)),
            MemberEvent::Conflict { info: Arc::clone(&info), other },
        ] {
            let told = Told::change(&ViewChange::Member { event, version: 9 }).unwrap();
            assert!(told.line().contains("evil\\u{1b}[2Jname\\u{202e}"), "{}", told.line());
            let json = told.json().to_string();
            for text in [told.line(), json.clone()] {
                assert!(!text.chars().any(char::is_control), "{text:?}");
            }
            // Tools get the very name: JSON escapes what is a control character.
            let value: Value = serde_json::from_str(&json).unwrap();
            assert_eq!(value["member"]["name"], info.name);
            assert_eq!((&value["version"], &value["event"]), (&9.into(), &"member".into()));
        }
    }
}
