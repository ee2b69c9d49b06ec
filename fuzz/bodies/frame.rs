//! Reads any bytes as a frame, checked and unchecked.

use qcast_proto::wire::frame::{
    FRAME_HEADER, Frame, FrameKind, MAX_MESSAGE, Messages, fragment_of_checked, sequence_of_checked,
};

/// Panics if a decoder does, or says something that cannot be.
pub(crate) fn run(data: &[u8]) {
    let unchecked: usize = Messages::of_checked(data).map(<[u8]>::len).sum();
    assert!(unchecked <= data.len());
    let fragment = fragment_of_checked(data);
    let Ok(frame) = Frame::new_checked(data) else { return };
    let header = *frame.header();
    assert_eq!(sequence_of_checked(data), header.sequence);
    let mut again = [0; FRAME_HEADER];
    header.emit(&mut again);
    // All but the flags, which are not looked at.
    assert_eq!((&again[..4], &again[6..]), (&data[..4], &data[6..FRAME_HEADER]));
    assert_eq!(frame.fragment().is_some(), header.kind == FrameKind::Fragment);
    match header.kind {
        FrameKind::Data => {
            let bytes: usize = frame.messages().map(|m| m.len() + 2).sum();
            assert_eq!(bytes, frame.body().len());
            assert!(frame.messages().next().is_some());
        }
        FrameKind::Fragment => {
            let (fragment, piece) = fragment.expect("it was checked");
            let end = fragment.offset as usize + piece.len();
            assert!(end <= fragment.message_len as usize && end <= MAX_MESSAGE);
        }
        _ => assert_eq!(frame.messages().count(), 0),
    }
}
