//! Bytes as what happens to a pair of nodes.

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    /// Time passes.
    Pass,
    /// Time passes, and nobody has a turn.
    Sleep,
    /// A publisher takes messages.
    Publish,
    OpenPublisher,
    ClosePublisher,
    RemovePublisher,
    OpenSubscriber,
    CloseSubscriber,
    /// An application's queue changes.
    Room,
    /// A receive queue ran dry.
    Starve,
    /// A node is reached elsewhere.
    Readdress,
    /// Datagrams arrive.
    Deliver,
    /// Datagrams do not.
    Lose,
    /// One arrives later than another.
    Reorder,
    /// A byte of one is changed.
    Damage,
    /// An earlier one arrives again, perhaps from elsewhere.
    Replay,
    /// Any bytes arrive.
    Noise,
    /// A frame of any kind with a sound header arrives.
    Forge,
    /// A control frame that can be read, and says anything, arrives.
    Lie,
}

const OPERATIONS: [Operation; 24] = [
    Operation::Pass,
    Operation::Sleep,
    Operation::Publish,
    Operation::OpenPublisher,
    Operation::ClosePublisher,
    Operation::RemovePublisher,
    Operation::OpenSubscriber,
    Operation::CloseSubscriber,
    Operation::Room,
    Operation::Starve,
    Operation::Readdress,
    Operation::Deliver,
    Operation::Lose,
    Operation::Reorder,
    Operation::Damage,
    Operation::Replay,
    Operation::Noise,
    Operation::Forge,
    Operation::Lie,
    // What makes progress comes more often.
    Operation::Deliver,
    Operation::Deliver,
    Operation::Pass,
    Operation::Publish,
    Operation::Lie,
];

/// The bytes that are left. Past the end all is zero.
pub(super) struct Input<'a> {
    rest: &'a [u8],
    operations: u32,
}

/// So many are enough to get anywhere, and few enough to be quick.
const MAX_OPERATIONS: u32 = 400;

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, operations: 0 }
    }

    pub(super) fn operation(&mut self) -> Option<Operation> {
        if self.rest.is_empty() || self.operations >= MAX_OPERATIONS {
            return None;
        }
        self.operations += 1;
        Some(OPERATIONS[usize::from(self.byte()) % OPERATIONS.len()])
    }

    pub(super) fn byte(&mut self) -> u8 {
        let (byte, rest) = self.rest.split_first().map_or((0, self.rest), |(b, rest)| (*b, rest));
        self.rest = rest;
        byte
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(super) fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number that code is likely to stumble over, or one near what is `usual`.
    pub(super) fn number(&mut self, usual: u64) -> u64 {
        let near = u64::from(self.byte());
        match self.byte() % 12 {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - near,
            3 => u64::from(u32::MAX) + near,
            4 => u64::from(u32::MAX) - near,
            5 => u64::from(self.word()) << (near % 33),
            6 => near,
            7 => usual.saturating_sub(near),
            8 => usual,
            9 => usual.saturating_add(near * near),
            _ => usual.saturating_add(near % 8),
        }
    }

    pub(super) fn number32(&mut self, usual: u32) -> u32 {
        u32::try_from(self.number(usual.into())).unwrap_or(u32::MAX)
    }

    pub(super) fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}
