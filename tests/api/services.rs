//! Services: announced, found, changed and withdrawn, by nodes of this process.

use std::time::Duration;

use qcast::{
    AnnounceError, AnnouncementEvent, BrowseError, Browser, FoundService, Node, ResolveError,
    Service, ServiceError, ServiceEvent,
};

use crate::rig::{DEADLINE, disturbed, join, manual, node, now, small, unique, until};

/// A type that no other test has.
fn kind(test: &str) -> String {
    let mut kind = unique(test).replace("api ", "");
    kind.truncate(32);
    kind
}

fn next(browser: &Browser) -> ServiceEvent {
    browser.recv_timeout(DEADLINE).unwrap().expect("something happens before the deadline")
}

fn added(browser: &Browser) -> FoundService {
    match next(browser) {
        ServiceEvent::Added(found) => found,
        other => panic!("{other:?}"),
    }
}

/// R-SERVICE-2, R-SERVICE-6, R-SERVICE-7.
#[test]
fn a_service_is_found_changed_and_withdrawn() {
    let (ours, theirs) = (node(), node());
    let kind = kind("life");
    let browser = theirs.browse(&kind).unwrap();
    let service = Service::new(&kind, "web", 80).meta("path", "/");
    let start = now();
    let announcement = ours.announce(service.clone()).unwrap();
    let found = added(&browser);
    println!("found after {:?}", start.elapsed());
    assert_eq!((&*found.service.name, found.service.port), ("web", 80));
    assert_eq!(found.service.address, Some(ours.device().gid.ip()));
    assert_eq!((found.owner.node, &*found.node_name), (ours.id(), ours.name()));
    assert_eq!(announcement.wait(DEADLINE).unwrap(), "web");

    announcement.update(service.meta("load", "3")).unwrap();
    match next(&browser) {
        ServiceEvent::Updated(found) => assert_eq!(found.service.value("load"), Some("3")),
        other => panic!("{other:?}"),
    }
    announcement.withdraw();
    assert!(matches!(next(&browser), ServiceEvent::Removed(_)));
    assert_eq!(browser.recv_timeout(Duration::from_millis(300)).unwrap(), None);
}

/// R-SERVICE-4: who comes later finds what is there, also where datagrams are lost.
#[test]
fn what_is_there_is_found_through_loss() {
    let ours = node();
    let kind = kind("loss");
    let announcements: Vec<_> =
        (0..20).map(|n| ours.announce(Service::new(&kind, format!("s{n}"), 80)).unwrap()).collect();
    for announcement in &announcements {
        announcement.wait(DEADLINE).unwrap();
    }
    let theirs = disturbed("loss=0.1,seed=3");
    let mut browser = theirs.browse(&kind).unwrap();
    let mut names: Vec<_> = browser
        .by_ref()
        .take(20)
        .map(|event| match event {
            ServiceEvent::Added(found) => found.service.name,
            other => panic!("{other:?}"),
        })
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 20);
    assert!(theirs.resolve_of(&kind, "s7", DEADLINE).is_ok());
}

/// R-SERVICE-3.
#[test]
fn the_second_of_a_name_is_numbered_and_both_are_told() {
    let (ours, theirs) = (node(), node());
    let kind = kind("names");
    let first = ours.announce(Service::new(&kind, "web", 80)).unwrap();
    assert_eq!(first.wait(DEADLINE).unwrap(), "web");
    let second = theirs.announce(Service::new(&kind, "web", 81)).unwrap();
    assert_eq!(second.wait(DEADLINE).unwrap(), "web (2)");
    assert_eq!(second.name().as_deref(), Some("web (2)"));
    match second.try_recv().unwrap() {
        Some(AnnouncementEvent::Renamed { from, to, by }) => {
            assert_eq!((&*from, &*to, by.node), ("web", "web (2)", ours.id()));
        }
        other => panic!("{other:?}"),
    }
    let mut contested = false;
    until("the first is told", || {
        while let Some(event) = first.try_recv().unwrap() {
            contested |=
                matches!(event, AnnouncementEvent::Contested { by } if by.node == theirs.id());
        }
        contested
    });
    let observer = node();
    assert_eq!(observer.resolve_of(&kind, "web", DEADLINE).unwrap().service.port, 80);
    assert_eq!(observer.resolve_of(&kind, "web (2)", DEADLINE).unwrap().service.port, 81);
    // Within one node, too.
    let third = ours.announce(Service::new(&kind, "web", 82)).unwrap();
    assert_eq!(third.wait(DEADLINE).unwrap(), "web (3)");
}

/// R-SERVICE-7: one whose node ends with it is withdrawn.
#[test]
fn dropping_an_announcement_withdraws_it() {
    let theirs = node();
    let kind = kind("drop");
    let browser = theirs.browse(&kind).unwrap();
    let ours = node();
    let announcement = ours.announce(Service::new(&kind, "web", 80)).unwrap();
    added(&browser);
    drop((announcement, ours));
    let start = now();
    assert!(matches!(next(&browser), ServiceEvent::Removed(_)));
    println!("gone after {:?}", start.elapsed());
}

#[test]
fn a_manual_node_is_driven_by_its_waits() {
    let (ours, theirs) = (manual(), manual());
    let kind = kind("manual");
    let (to, from) = std::sync::mpsc::channel();
    let of = kind.clone();
    let owner = std::thread::spawn(move || {
        let announcement = ours.announce(Service::new(of, "web", 80)).unwrap();
        to.send(announcement.wait(DEADLINE).unwrap()).unwrap();
        // Whoever asks is answered while it waits.
        while announcement.recv_timeout(Duration::from_millis(5)).is_ok() {
            if to.send(String::new()).is_err() {
                return announcement.withdraw();
            }
        }
    });
    assert_eq!(from.recv_timeout(DEADLINE).unwrap(), "web");
    let browser = theirs.browse(&kind).unwrap();
    assert_eq!(added(&browser).service.name, "web");
    drop(from);
    assert!(matches!(next(&browser), ServiceEvent::Removed(_)));
    owner.join().unwrap();
}

/// R-SERVICE-1.
#[test]
fn what_is_out_of_bounds_is_refused() {
    let node = node();
    for (service, says) in [
        (Service::new("t", "x".repeat(10_000), 1), "1 to 64 bytes"),
        (Service::new("t", "a\u{1b}[2J", 1), "control characters"),
        (Service::new("t", "a", 1).ttl(Duration::ZERO), "TTL"),
        (Service::new("t", "a", 1).meta("k", "v".repeat(300)), "too much"),
        (Service::new("t", "a", 0), "port"),
    ] {
        let error = node.announce(service).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(matches!(node.browse("x".repeat(10_000)), Err(BrowseError::Type(_))));
    assert!(matches!(node.resolve("", DEADLINE), Err(ResolveError::Browse(BrowseError::Name(_)))));
    let announcement = node.announce(Service::new(kind("bounds"), "a", 1)).unwrap();
    let zero = Service::new("t", "a", 1).ttl(Duration::ZERO);
    assert!(matches!(announcement.update(zero), Err(ServiceError::Ttl(_))));
    let error = node.resolve("nobody announces this", Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, ResolveError::NotFound { .. }), "{error}");
}

#[test]
fn without_the_control_group_there_is_none_of_it() {
    let node = small().control(false).open().unwrap();
    let announced = node.announce(Service::new("t", "a", 1));
    assert!(matches!(announced, Err(AnnounceError::NoControlGroup)));
    assert!(matches!(node.browse("t"), Err(BrowseError::NoControlGroup)));
    assert!(node.seen_groups(Duration::ZERO).is_err());
}

/// R-CONTROLGROUP-1: over IPv6, in a network of its own that has a way for its groups.
#[test]
fn services_are_found_over_ipv6() {
    const INNER: &str = "QCAST_TEST_INNER";
    if std::env::var_os(INNER).is_none() {
        let script = "ip link set lo up && ip -6 route add local ff00::/8 dev lo table local && \
                      exec \"$0\" services::services_are_found_over_ipv6 --exact --nocapture";
        let mut inner = std::process::Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            inner.args(["--user", "--map-root-user"]);
        }
        inner.args(["--net", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
        assert!(inner.env(INNER, "1").status().unwrap().success());
        return;
    }
    let open = || Node::builder().device("soft:::1".parse().unwrap()).srq_depth(64).open().unwrap();
    let (ours, theirs) = (open(), open());
    let _joined = join(&ours, &unique("six"));
    let kind = kind("six");
    let _announcement = ours.announce(Service::new(&kind, "web", 80)).unwrap();
    let found = theirs.resolve_of(&kind, "web", DEADLINE).unwrap();
    assert!(found.service.address.is_some_and(|address| address.is_ipv6()));
}

#[cfg(feature = "async")]
#[test]
fn a_browser_is_a_stream() {
    use futures_core::Stream;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};
    let (ours, theirs) = (node(), node());
    let kind = kind("stream");
    let mut browser = theirs.browse(&kind).unwrap();
    let _announcement = ours.announce(Service::new(&kind, "web", 80)).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut found = None;
    until("the service is found", || {
        if let Poll::Ready(event) = Pin::new(&mut browser).poll_next(&mut cx) {
            found = event;
        }
        found.is_some()
    });
    assert!(matches!(found, Some(Ok(ServiceEvent::Added(_)))));
}
