//! Packets out of pcap and pcapng files.
//!
//! The reading is the `pcap-file` crate's. What it does not do is done here: it refuses packets
//! that were longer on the wire than the snapshot length, it takes every pcapng time stamp for
//! nanoseconds, and it swaps the halves of those in the obsolete packet block.

use std::io::{self, Cursor, Read};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};

/// A packet as it was captured.
pub(super) struct Packet {
    /// Its place in the file, from 1.
    pub(super) number: u64,
    /// When it was captured, since 1970 in UTC; simple packet blocks do not say.
    pub(super) time: Option<Duration>,
    /// What its first bytes are.
    pub(super) link: DataLink,
    /// The bytes that were captured: all of it, or its beginning.
    pub(super) data: Vec<u8>,
}

/// An open capture.
pub(super) struct Capture<R: Read> {
    format: Format<R>,
    packets: u64,
}

/// The file with the four bytes that were read to tell the format put back.
type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Whole<R>>),
    PcapNg { reader: PcapNgReader<Whole<R>>, little_endian: bool, interfaces: Vec<Interface> },
}

impl<R: Read> Capture<R> {
    /// Opens a capture of the format that its first four bytes show.
    ///
    /// # Errors
    /// The file cannot be read, or is not a capture.
    pub(super) fn open(mut file: R) -> Result<Self, CaptureError> {
        let mut magic = Vec::new();
        Read::by_ref(&mut file).take(4).read_to_end(&mut magic).map_err(CaptureError::Read)?;
        let is_pcapng = magic == PCAPNG_MAGIC;
        if !is_pcapng && !PCAP_MAGICS.iter().any(|known| magic == *known) {
            return Err(CaptureError::NotACapture);
        }
        let file = Cursor::new(magic).chain(file);
        let format = if is_pcapng {
            let reader = PcapNgReader::new(file).map_err(in_file_header)?;
            let little_endian = reader.section().endianness == Endianness::Little;
            Format::PcapNg { reader, little_endian, interfaces: Vec::new() }
        } else {
            Format::Pcap(PcapReader::new(file).map_err(in_file_header)?)
        };
        Ok(Self { format, packets: 0 })
    }

    /// The next packet, or `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or ends in the middle of a packet. There is nothing to
    /// be had after an error.
    pub(super) fn next_packet(&mut self) -> Result<Option<Packet>, CaptureError> {
        let number = self.packets + 1;
        let packet = match &mut self.format {
            Format::Pcap(reader) => next_of_pcap(reader, number),
            Format::PcapNg { reader, little_endian, interfaces } => {
                next_of_pcapng(reader, little_endian, interfaces, number)
            }
        }
        .map_err(|error| in_packet(error, number))?;
        self.packets += u64::from(packet.is_some());
        Ok(packet)
    }
}

fn next_of_pcap<R: Read>(
    reader: &mut PcapReader<R>,
    number: u64,
) -> Result<Option<Packet>, PcapError> {
    let header = reader.header();
    let Some(raw) = reader.next_raw_packet().transpose()? else { return Ok(None) };
    if raw.incl_len > MAX_PACKET_LEN {
        return Err(PcapError::InvalidField("longer than any capture keeps"));
    }
    let fraction = match header.ts_resolution {
        TsResolution::MicroSecond => Duration::from_micros(raw.ts_frac.into()),
        TsResolution::NanoSecond => Duration::from_nanos(raw.ts_frac.into()),
    };
    Ok(Some(Packet {
        number,
        time: Some(Duration::from_secs(raw.ts_sec.into()) + fraction),
        link: header.datalink,
        data: raw.data.into_owned(),
    }))
}

fn next_of_pcapng<R: Read>(
    reader: &mut PcapNgReader<R>,
    little_endian: &mut bool,
    interfaces: &mut Vec<Interface>,
    number: u64,
) -> Result<Option<Packet>, PcapError> {
    while let Some(block) = reader.next_block().transpose()? {
        let (interface, ticks, data) = match block {
            Block::SectionHeader(section) => {
                *little_endian = section.endianness == Endianness::Little;
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(interface) => {
                interfaces.push(Interface::of(&interface));
                continue;
            }
            Block::EnhancedPacket(packet) => {
                // The crate calls the ticks nanoseconds, whatever they are.
                let ticks = packet.timestamp.as_nanos() as u64;
                (packet.interface_id, Some(ticks), packet.data)
            }
            Block::Packet(packet) => {
                // Two 32-bit halves, the upper first, that were read as one 64-bit number.
                let ticks = packet.timestamp.rotate_left(if *little_endian { 32 } else { 0 });
                (packet.interface_id.into(), Some(ticks), packet.data)
            }
            Block::SimplePacket(packet) => {
                let snaplen = interfaces.first().map_or(0, |first| first.snaplen);
                let len = if snaplen == 0 { u32::MAX } else { snaplen }.min(packet.original_len);
                let mut data = packet.data.into_owned();
                data.truncate(len as usize);
                (0, None, data.into())
            }
            _ => continue,
        };
        let Some(described) = interfaces.get(interface as usize) else {
            return Err(PcapError::InvalidInterfaceId(interface));
        };
        return Ok(Some(Packet {
            number,
            time: ticks.and_then(|ticks| described.time(ticks)),
            link: described.link,
            data: data.into_owned(),
        }));
    }
    Ok(None)
}

/// What the packets of an interface have in common.
struct Interface {
    link: DataLink,
    snaplen: u32,
    /// Ticks in a second; `None` if they are finer than can be told.
    resolution: Option<u128>,
    /// Seconds to add.
    offset: i64,
}

impl Interface {
    fn of(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let mut interface = Self {
            link: block.linktype,
            snaplen: block.snaplen,
            resolution: Some(1_000_000),
            offset: 0,
        };
        for option in &block.options {
            match option {
                InterfaceDescriptionOption::IfTsResol(exponent) => {
                    let base = if exponent & 0x80 == 0 { 10u128 } else { 2 };
                    interface.resolution = base.checked_pow((exponent & 0x7f).into());
                }
                InterfaceDescriptionOption::IfTsOffset(seconds) => {
                    interface.offset = seconds.cast_signed();
                }
                _ => {}
            }
        }
        interface
    }

    fn time(&self, ticks: u64) -> Option<Duration> {
        let (ticks, resolution) = (u128::from(ticks), self.resolution?);
        let seconds = u64::try_from(ticks / resolution).ok()?.checked_add_signed(self.offset)?;
        // Below 10^9, since the remainder is below the resolution; and below 2^64 · 10^9 on the
        // way.
        let nanos = (ticks % resolution) * 1_000_000_000 / resolution;
        Some(Duration::new(seconds, nanos as u32))
    }
}

/// Why a capture cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CaptureError {
    /// The first bytes are those of another kind of file, or there are none.
    #[error("it is not a pcap or pcapng capture; `tcpdump -w FILE udp port 4791` writes one")]
    NotACapture,
    /// The header of the file itself is damaged or cut short.
    #[error("its file header is damaged or cut short")]
    Header(#[source] PcapError),
    /// The file ends within a packet.
    #[error("it ends in the middle of packet {packet}; what comes before it was decoded")]
    CutShort {
        /// Which packet, from 1.
        packet: u64,
    },
    /// A packet's own header makes no sense.
    #[error("packet {packet} is damaged; what comes before it was decoded")]
    Damaged {
        /// Which packet, from 1.
        packet: u64,
        /// What is wrong with it.
        source: PcapError,
    },
    /// The system cannot read the file.
    #[error("reading it failed")]
    Read(#[source] io::Error),
}

fn in_file_header(error: PcapError) -> CaptureError {
    match error {
        PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            CaptureError::Read(error)
        }
        error => CaptureError::Header(error),
    }
}

fn in_packet(error: PcapError, packet: u64) -> CaptureError {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            CaptureError::CutShort { packet }
        }
        PcapError::IoError(error) => CaptureError::Read(error),
        source => CaptureError::Damaged { packet, source },
    }
}

const PCAPNG_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Microseconds and nanoseconds, of either byte order.
const PCAP_MAGICS: [[u8; 4]; 4] = [
    [0xa1, 0xb2, 0xc3, 0xd4],
    [0xd4, 0xc3, 0xb2, 0xa1],
    [0xa1, 0xb2, 0x3c, 0x4d],
    [0x4d, 0x3c, 0xb2, 0xa1],
];
/// What tcpdump takes for the longest packet there can be; a longer one is a damaged length.
const MAX_PACKET_LEN: u32 = 256 * 1024;
