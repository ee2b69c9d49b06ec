//! Reads any bytes as each control body.

use qcast_proto::wire::control::{
    Announce, Gone, Heartbeat, MAX_BODY, Nak, Released, Status, decode, encode, is_sound_name,
};

/// Panics if a decoder does, or if what was read is not written again.
pub(crate) fn run(data: &[u8]) {
    let mut out = [0; MAX_BODY];
    if let Ok(body) = decode::<Heartbeat>(data) {
        let n = encode(&body, &mut out).expect("what was read fits");
        assert_eq!(decode::<Heartbeat>(&out[..n]), Ok(body));
    }
    if let Ok(body) = decode::<Announce>(data) {
        let n = encode(&body, &mut out).expect("what was read fits");
        let _ = is_sound_name(&body.name) && is_sound_name(&body.topic);
        assert_eq!(decode::<Announce>(&out[..n]), Ok(body));
    }
    if let Ok(body) = decode::<Status>(data) {
        let n = encode(&body, &mut out).expect("what was read fits");
        assert_eq!(decode::<Status>(&out[..n]), Ok(body));
    }
    if let Ok(body) = decode::<Gone>(data) {
        let n = encode(&body, &mut out).expect("what was read fits");
        assert_eq!(decode::<Gone>(&out[..n]), Ok(body));
    }
    if let Ok(body) = decode::<Released>(data) {
        let n = encode(&body, &mut out).expect("what was read fits");
        assert_eq!(decode::<Released>(&out[..n]), Ok(body));
    }
    if let Ok(body) = decode::<Nak>(data) {
        assert!(body.runs.capacity() <= MAX_BODY);
        let mut end = 0;
        for (first, count) in body.ranges() {
            assert!(first >= end && count > 0);
            end = first.checked_add(u64::from(count)).expect("within the number space");
        }
        let n = encode(&body, &mut out).expect("what was read fits");
        assert_eq!(decode::<Nak>(&out[..n]), Ok(body));
    }
}
