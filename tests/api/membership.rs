//! Who is in a group, on real nodes.

use std::time::Duration;

use qcast::{
    Group, JoinError, MemberEvent, MemberState, Node, Role, View, ViewChange, ViewChanges,
};

use crate::rig::{DEADLINE, join, manual, node, now, small, unique, until};

fn named(name: &str) -> Node {
    small().name(name).open().unwrap()
}

/// A name that no other test's node has: names are identities.
fn member(group: &str, name: &str) -> String {
    format!("{name} of {group}")
}

fn names(view: &View) -> Vec<String> {
    let mut names: Vec<_> = view.members.iter().map(|m| m.info.name.clone()).collect();
    names.sort();
    names
}

/// The next change that is about this member; others are passed over.
fn change_of(changes: &ViewChanges, name: &str) -> (MemberEvent, u64) {
    let deadline = now() + DEADLINE;
    loop {
        let left = deadline.saturating_duration_since(now());
        match changes.recv_timeout(left).unwrap() {
            Some(ViewChange::Member { event, version }) if event.info().name == name => {
                return (event, version);
            }
            Some(_) => {}
            None => panic!("nothing was told of {name}"),
        }
    }
}

fn sees(group: &Group, wanted: &[&str]) {
    let mut wanted: Vec<_> = wanted.iter().map(|name| (*name).to_owned()).collect();
    wanted.sort();
    until(&format!("the members {wanted:?}"), || names(&group.members()) == wanted);
}

#[test]
fn members_see_each_other_join_and_leave() {
    let group = unique("join and leave");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let ours = named(&ann);
    let here = ours.group(&group).metadata("rack", "7").metadata("gpu", "").join().unwrap();
    let changes = here.view_changes();
    assert_eq!(names(changes.start()), [ann.as_str()]);
    assert!(changes.start().members[0].own);
    assert_eq!(changes.try_recv().unwrap(), None);

    let theirs = named(&bob);
    let there = join(&theirs, &group);
    let (event, joined) = change_of(&changes, &bob);
    let MemberEvent::Joined(info) = event else { panic!("{event:?}") };
    assert_eq!((info.node, info.role), (theirs.id(), Role::Observer));
    assert!(!info.host.is_empty() && info.incarnation > 0);
    sees(&here, &[&ann, &bob]);
    sees(&there, &[&ann, &bob]);
    assert_eq!(here.members().version, joined);

    // What was said at the join is there with it.
    let view = there.members();
    let seen = view.member(ours.id()).unwrap();
    let metadata = [("rack".to_owned(), "7".to_owned()), ("gpu".to_owned(), String::new())];
    assert_eq!((&seen.info.metadata[..], seen.own), (&metadata[..], false));
    assert_eq!(seen.state, MemberState::Alive);
    assert!(theirs.now().saturating_since(seen.heard) < DEADLINE);

    drop(there);
    let (event, left) = change_of(&changes, &bob);
    assert!(matches!(event, MemberEvent::Left(_)), "{event:?}");
    assert!(left > joined);
    sees(&here, &[&ann]);
}

#[test]
fn a_role_is_what_is_open() {
    let group = unique("roles");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let (ours, theirs) = (named(&ann), named(&bob));
    let (here, there) = (join(&ours, &group), join(&theirs, &group));
    sees(&here, &[&ann, &bob]);
    let role = |wanted| {
        until(&format!("{wanted}"), || {
            here.members().member(theirs.id()).is_some_and(|m| m.info.role == wanted)
        });
    };
    role(Role::Observer);
    let publisher = there.publisher().open().unwrap();
    role(Role::Publisher);
    let subscriber = there.subscriber().open().unwrap();
    role(Role::Both);
    assert!(publisher.close().unconfirmed.is_empty());
    role(Role::Subscriber);
    drop(subscriber);
    role(Role::Observer);
    let own = here.members();
    assert_eq!(own.member(ours.id()).unwrap().info.role, Role::Observer);
}

#[test]
fn metadata_changes_and_is_bounded() {
    let group = unique("metadata");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let (ours, theirs) = (named(&ann), named(&bob));
    let here = join(&ours, &group);
    let changes = here.view_changes();
    let there = join(&theirs, &group);
    assert!(matches!(change_of(&changes, &bob).0, MemberEvent::Joined(_)));
    there.set_metadata([("load", "0.5")]).unwrap();
    loop {
        match change_of(&changes, &bob).0 {
            MemberEvent::Updated(info) if !info.metadata.is_empty() => {
                assert_eq!(info.metadata, [("load".to_owned(), "0.5".to_owned())]);
                break;
            }
            MemberEvent::Updated(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let long = "x".repeat(10_000);
    let refused = [
        there.set_metadata([("k", long.as_str())]),
        there.set_metadata([("k", "1"), ("k", "2")]),
        there.set_metadata([("", "1")]),
        there.set_metadata([("k", "\u{1b}[2J")]),
        there.set_metadata((0..100).map(|n| (n.to_string(), "")).collect::<Vec<_>>()),
    ];
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
    let joined = theirs.group(unique("long")).metadata("k", long).join();
    assert!(matches!(joined, Err(JoinError::Metadata(_))), "{joined:?}");
}

#[test]
fn a_restart_is_a_new_life() {
    let group = unique("restart");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let here = join(&named(&ann), &group);
    let changes = here.view_changes();
    let first = join(&named(&bob), &group);
    let MemberEvent::Joined(info) = change_of(&changes, &bob).0 else { panic!() };
    // Its next life begins before the first one ends: the old one has left before the new one is there.
    let second = join(&named(&bob), &group);
    let MemberEvent::Left(left) = change_of(&changes, &bob).0 else { panic!() };
    let MemberEvent::Joined(again) = change_of(&changes, &bob).0 else { panic!() };
    assert_eq!((left.incarnation, again.node), (info.incarnation, info.node));
    assert!(again.incarnation > info.incarnation);
    drop(first);
    sees(&second, &[&ann, &bob]);
    sees(&here, &[&ann, &bob]);
}

#[test]
fn one_that_is_driven_no_more_fails_and_comes_back() {
    let group = unique("silent");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let here = join(&named(&ann), &group);
    let changes = here.view_changes();
    let theirs = small().name(&bob).progress(qcast::Progress::Manual).open().unwrap();
    let there = join(&theirs, &group);
    assert!(matches!(change_of(&changes, &bob).0, MemberEvent::Joined(_)));
    // Nobody drives it: it is as if it were frozen.
    assert!(matches!(change_of(&changes, &bob).0, MemberEvent::Suspected(_)));
    let view = here.members();
    assert_eq!(view.member(theirs.id()).map(|m| m.state), Some(MemberState::Suspect));
    assert!(matches!(change_of(&changes, &bob).0, MemberEvent::Failed(_)));
    assert!(here.members().member(theirs.id()).is_none());
    // Driven again it is a member again; and it has not taken the others for dead meanwhile.
    let its = there.view_changes();
    until("its return", || {
        theirs.poll(Duration::from_millis(5)).unwrap();
        here.members().member(theirs.id()).is_some()
    });
    while let Some(change) = its.try_recv().unwrap() {
        let ViewChange::Member { event, .. } = change else { panic!("{change:?}") };
        assert!(!matches!(event, MemberEvent::Failed(_)), "{event:?}");
    }
}

#[test]
fn a_blocking_wait_drives_a_manual_node() {
    let group = unique("manual members");
    let theirs = manual();
    let there = join(&theirs, &group);
    let changes = there.view_changes();
    assert_eq!(changes.recv_timeout(Duration::from_millis(1)).unwrap(), None);
    let here = join(&named(&member(&group, "ann")), &group);
    let ViewChange::Member { event, .. } = changes.recv().unwrap() else { panic!() };
    assert!(matches!(event, MemberEvent::Joined(_)), "{event:?}");
    // And the other one sees this one, which is driven by its waits alone.
    until("the manual member", || {
        let _ = changes.recv_timeout(Duration::from_millis(5)).unwrap();
        here.members().member(theirs.id()).is_some()
    });
    drop(here);
    let ended = changes
        .iter()
        .find(|change| matches!(change, ViewChange::Member { event, .. } if event.is_end()));
    assert!(ended.is_some());
}

#[test]
fn changes_keep_the_group_and_outlive_other_handles() {
    let group = unique("outlives");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let changes = join(&named(&ann), &group).view_changes();
    let there = join(&named(&bob), &group);
    sees(&there, &[&ann, &bob]);
    assert!(matches!(change_of(&changes, &bob).0, MemberEvent::Joined(_)));
    drop(changes);
    sees(&there, &[&bob]);
}

/// Two groups of one name with other keys are two groups (case 21).
#[test]
fn members_with_another_key_are_not_seen() {
    let group = unique("keys");
    let (ann, bob) = (member(&group, "ann"), member(&group, "bob"));
    let (ours, theirs) = (named(&ann), named(&bob));
    let here = ours.group(&group).secret("one").join().unwrap();
    let there = theirs.group(&group).secret("two").join().unwrap();
    until("a rejected datagram", || ours.counters().qkey_violations > 0);
    assert_eq!(names(&here.members()), [ann]);
    assert_eq!(names(&there.members()), [bob]);
}

/// R-MEMBER-14, case 128: whatever joins and leaves at once, the changes in their order are the view at last, and no
/// older one is told after a newer.
#[test]
fn changes_are_told_in_order_and_add_up_to_the_view() {
    let group = unique("in order");
    let watcher = node();
    let here = join(&watcher, &group);
    let changes = here.view_changes();
    let stays: Vec<_> = (0..4)
        .map(|_| {
            let group = group.clone();
            std::thread::spawn(move || {
                let node = node();
                for _ in 0..3 {
                    drop(join(&node, &group));
                }
                (join(&node, &group), node)
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    let mut seen: Vec<_> =
        changes.start().members.iter().map(|m| (m.info.node, m.info.address)).collect();
    let mut version = changes.start().version;
    let stay: Vec<_> = stays.iter().map(|(_, node)| node.id()).collect();
    until("the changes add up to who is there", || {
        while let Some(change) = changes.try_recv().unwrap() {
            let ViewChange::Member { event, version: with } = change else { panic!("{change:?}") };
            assert!(with > version || matches!(event, MemberEvent::Conflict { .. }), "{event:?}");
            version = with;
            let info = event.info();
            if event.is_end() {
                seen.retain(|(node, _)| *node != info.node);
            } else if matches!(event, MemberEvent::Joined(_)) {
                assert!(seen.iter().all(|(node, _)| *node != info.node), "{info:?} twice");
                seen.push((info.node, info.address));
            } else if let Some(of) = seen.iter_mut().find(|(node, _)| *node == info.node) {
                of.1 = info.address;
            }
        }
        let view = here.members();
        let mut now: Vec<_> = view.members.iter().map(|m| (m.info.node, m.info.address)).collect();
        seen.sort();
        now.sort();
        seen == now
            && view.version == version
            && stay.iter().all(|id| now.iter().any(|(node, _)| node == id))
    });
}
