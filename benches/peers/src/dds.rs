//! CycloneDDS, reliable and keep-all, multicast for data also to a single reader.

use std::ffi::c_void;

use crate::peer::{OnMessage, Rx, Setup, Tx};

// SAFETY: as defined in dds.c.
unsafe extern "C" {
    safe fn peer_dds_pub() -> i32;
    safe fn peer_dds_matched() -> i32;
    fn peer_dds_write(p: *const u8, n: u32) -> i32;
    safe fn peer_dds_flush();
    safe fn peer_dds_sub() -> i32;
    fn peer_dds_take(f: extern "C" fn(*mut c_void, *const u8, u32), arg: *mut c_void) -> i32;
}

pub struct DdsTx {
    subscribers: i32,
    datagram: usize,
}

pub fn tx(setup: &Setup) -> DdsTx {
    configure(setup);
    assert!(peer_dds_pub() >= 0, "dds writer");
    DdsTx { subscribers: setup.n as i32, datagram: setup.dgram }
}

impl Tx for DdsTx {
    fn datagram(&self) -> usize {
        self.datagram
    }

    fn ready(&mut self) -> bool {
        peer_dds_matched() == self.subscribers
    }

    fn send(&mut self, message: &[u8]) -> bool {
        // SAFETY: the bytes are read in the call, which blocks at the watermark.
        unsafe { peer_dds_write(message.as_ptr(), message.len() as u32) == 0 }
    }

    fn flush(&mut self) -> bool {
        peer_dds_flush();
        true
    }
}

pub struct DdsRx;

pub fn rx(setup: &Setup) -> DdsRx {
    configure(setup);
    assert!(peer_dds_sub() >= 0, "dds reader");
    DdsRx
}

impl Rx for DdsRx {
    fn poll(&mut self, mut on: OnMessage) {
        // SAFETY: `on` outlives the call, which alone calls `on_sample`.
        unsafe { peer_dds_take(on_sample, (&raw mut on).cast()) };
    }
}

extern "C" fn on_sample(arg: *mut c_void, at: *const u8, len: u32) {
    // SAFETY: `poll` gave the closure, which outlives the call of `peer_dds_take` that this runs in.
    let on = unsafe { &mut *arg.cast::<OnMessage>() };
    // SAFETY: the sample is on loan until `peer_dds_take` returns it.
    on(unsafe { std::slice::from_raw_parts(at, len as usize) })
}

fn configure(setup: &Setup) {
    let (max, fragment) = (setup.dgram, setup.dgram - 160);
    let lan = "<WriteBatch>true</WriteBatch><NackDelay>1ms</NackDelay><AckDelay>1ms</AckDelay>\
               <AutoReschedNackDelay>10ms</AutoReschedNackDelay>\
               <HeartbeatInterval min='1ms' minsched='1ms' max='100ms'>2ms</HeartbeatInterval>\
               <PrimaryReorderMaxSamples>16384</PrimaryReorderMaxSamples>\
               <SecondaryReorderMaxSamples>16384</SecondaryReorderMaxSamples>\
               <DefragReliableMaxSamples>1024</DefragReliableMaxSamples>\
               <MaxQueuedRexmitMessages>20000</MaxQueuedRexmitMessages>\
               <MaxQueuedRexmitBytes>8MB</MaxQueuedRexmitBytes>\
               <Watermarks><WhcHigh>2MB</WhcHigh></Watermarks>";
    let config = format!(
        "<General><Interfaces>\
         <NetworkInterface name='lo' multicast='true' prefer_multicast='true'/></Interfaces>\
         <AllowMulticast>true</AllowMulticast>\
         <MaxMessageSize>{max}B</MaxMessageSize><FragmentSize>{fragment}B</FragmentSize>\
         <MaxRexmitMessageSize>{max}B</MaxRexmitMessageSize></General>\
         <Internal><SocketReceiveBufferSize min='4MB' max='4MB'/>{}{}</Internal>\
         <Tracing><Verbosity>severe</Verbosity><OutputFile>stderr</OutputFile></Tracing>",
        if setup.variant == "lan" { lan } else { "" },
        setup.env("DDS_XML", "")
    );
    // SAFETY: no other thread runs in this process yet.
    unsafe { std::env::set_var("CYCLONEDDS_URI", config) };
}
