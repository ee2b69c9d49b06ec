//! Measures reliable multicast peers side by side; see README.md.
//!
//! Without arguments this is the orchestrator ([`bench`]), which starts itself again as publisher and subscriber
//! processes ([`role`]): `peers pub|sub PEER ID N SIZE DGRAM DIR`.

mod aeron;
mod bench;
mod cell;
mod dds;
mod loss;
mod norm;
mod peer;
mod process;
mod qcast_peer;
mod raw;
mod report;
mod role;

use peer::Setup;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, peer, id, n, size, dgram, dir] = args.as_slice() else {
        return bench::run();
    };
    let number = |arg: &String| arg.parse().expect("the orchestrator gives numbers");
    let (peer, variant) = peer.split_once('-').unwrap_or((peer, ""));
    let setup = Setup {
        variant: variant.into(),
        id: number(id),
        n: number(n),
        size: number(size),
        dgram: number(dgram),
        dir: dir.clone(),
    };
    process::end_with_parent();
    match role.as_str() {
        "pub" => role::publish(peer, &setup),
        _ => role::subscribe(peer, &setup),
    }
    process::exit_now(); // no peer's orderly shutdown: it is not measured
}
