//! Reading ahead, on a thread of its own: reading from a terminal or a pipe can take for ever, and signals are to be
//! noticed meanwhile.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// What was read, in pieces; it ends with the input, or with an error.
pub(crate) type Chunks = Receiver<io::Result<Vec<u8>>>;

/// Chunks that are read ahead.
const AHEAD: usize = 16;

const CHUNK: usize = 64 << 10;

/// Begins to read. The thread ends with the input, or when nobody wants its chunks any more; a read that never
/// returns ends with the process.
pub(crate) fn read(mut from: impl Read + Send + 'static) -> Chunks {
    let (to, chunks) = sync_channel(AHEAD);
    thread::spawn(move || {
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(len) => {
                    chunk.truncate(len);
                    Ok(chunk)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            if to.send(read).is_err() || failed {
                break;
            }
        }
    });
    chunks
}
