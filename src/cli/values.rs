//! What may be written on the command line, beyond what types alone say.

use std::net::IpAddr;
use std::time::Duration;

use qcast::{FlowPolicy, Reliability};
use qcast_proto::node::CONTROL_GROUP;
use qcast_proto::wire::control::{MAX_NAME, is_sound_name};

/// A group's, node's or topic's name.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("a name cannot be empty".into())
    } else if text.len() > MAX_NAME {
        Err(format!("a name has at most {MAX_NAME} bytes, and this has {}", text.len()))
    } else if !is_sound_name(text) {
        Err("a name cannot hold control characters".into())
    } else {
        Ok(text.to_owned())
    }
}

/// A group's name: not the control group's.
pub(crate) fn group(text: &str) -> Result<String, String> {
    if text == CONTROL_GROUP {
        return Err(format!("{text:?} is the name of the control group, which every node is in"));
    }
    name(text)
}

/// A key and a value that members are to know.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
    let (key, value) = pair.ok_or("give KEY=VALUE, such as rack=7")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// The address of a multicast group (case 45).
pub(crate) fn mgid(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text
        .parse()
        .map_err(|_| "give a multicast address such as 239.192.7.7 or ff15::7".to_owned())?;
    if !ip.is_multicast() {
        return Err(format!("{ip} is not a multicast address; use one such as 239.192.7.7"));
    }
    let reserved = match ip {
        IpAddr::V4(ip) => ip.octets()[..3] == [224, 0, 0],
        // Interface-local groups stay in the host's own loopback; the well-known link-local ones belong
        // to the network's own protocols.
        IpAddr::V6(ip) => {
            let [first, ..] = ip.segments();
            matches!(first & 0xf, 0 | 1 | 0xf) || first == 0xff02
        }
    };
    if reserved {
        return Err(format!(
            "{ip} is reserved for the network's own protocols; use one such as 239.192.7.7 or ff15::7"
        ));
    }
    Ok(ip)
}

/// A time in seconds, more than none.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim_end_matches('s').trim().parse::<f64>().ok();
    // A year: longer than any run, and far from where durations overflow.
    seconds
        .filter(|s| (0.001..=31_536_000.0).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give seconds, such as 2 or 0.5".into())
}

/// A rate per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=1e9).contains(rate));
    rate.ok_or_else(|| "give a number per second, from 0.001 to 1000000000".into())
}

/// A share, less than all: `0.02` or `2%`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let share = digits.trim().parse::<f64>().ok().map(|share| share / scale);
    share
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| "give a share from 0 to below 1, such as 0.02, or a percentage".into())
}

/// Whom a publisher waits for.
pub(crate) fn policy(text: &str) -> Result<FlowPolicy, String> {
    let wrong = || {
        "use slowest, quorum:N (at least 1), tagged:T (the --tag of subscribers) or unlimited"
            .to_owned()
    };
    match text.split_once(':') {
        None if text == "slowest" => Ok(FlowPolicy::Slowest),
        None if text == "unlimited" => Ok(FlowPolicy::Unlimited),
        Some(("quorum", n)) => match n.parse() {
            Ok(n @ 1..) => Ok(FlowPolicy::Quorum(n)),
            _ => Err(wrong()),
        },
        Some(("tagged", tag)) => tag.parse().map(FlowPolicy::Tagged).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

/// How a subscription treats loss.
pub(crate) fn reliability(text: &str) -> Result<Reliability, String> {
    match text {
        "ordered" => Ok(Reliability::Ordered),
        "unordered" => Ok(Reliability::Unordered),
        "best-effort" => Ok(Reliability::BestEffort),
        "latest" => Ok(Reliability::Latest),
        _ => Err("use ordered, unordered, best-effort or latest".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_addresses() {
        for good in ["239.1.2.3", "224.0.1.1", "ff0e::7", "ff15::7", "ff12::1"] {
            assert_eq!(mgid(good).unwrap().to_string(), good);
        }
        for (bad, says) in [
            ("192.168.3.146", "not a multicast"),
            ("fe80::1", "not a multicast"),
            ("224.0.0.5", "reserved"),
            ("ff02::1", "reserved"),
            ("ff01::7", "reserved"),
            ("239.1.2", "such as 239.192.7.7"),
            ("", "such as 239.192.7.7"),
        ] {
            let error = mgid(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn names() {
        assert_eq!(name("a b/é").unwrap(), "a b/é");
        assert!(name("").unwrap_err().contains("empty"));
        assert!(name(&"x".repeat(97)).unwrap_err().contains("97"));
        assert!(name("a\nb").unwrap_err().contains("control"));
    }

    #[test]
    fn pairs() {
        assert_eq!(pair("k=v=w"), Ok(("k".to_owned(), "v=w".to_owned())));
        assert_eq!(pair("k="), Ok(("k".to_owned(), String::new())));
        for bad in ["", "k", "=v"] {
            assert!(pair(bad).unwrap_err().contains("rack=7"), "{bad}");
        }
    }

    #[test]
    fn numbers_out_of_range() {
        assert_eq!(seconds("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["0", "-1", "nan", "inf", "1e30", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(share("5%").unwrap(), 0.05);
        for bad in ["1", "100%", "-0.1", "nan", "x"] {
            assert!(share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn policies() {
        assert_eq!(policy("quorum:2"), Ok(FlowPolicy::Quorum(2)));
        assert_eq!(policy("tagged:7"), Ok(FlowPolicy::Tagged(7)));
        for bad in ["", "quorum", "quorum:0", "tagged:x", "fast"] {
            assert!(policy(bad).unwrap_err().contains("use slowest"), "{bad}");
        }
    }
}
