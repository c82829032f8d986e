//! What queues and ports count.

/// One counter of a port by name, for what differs from driver to driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name, words joined by `_`, as in `rx_fill_ring_empty`.
    pub name: &'static str,
    /// How much or how often since the port was opened; of a state 1 while it is so, else 0.
    pub value: u64,
    /// It tells how something is now, and may fall again. All others only grow.
    pub is_state: bool,
}

impl Counter {
    /// What only grows.
    #[must_use]
    pub fn count(name: &'static str, value: u64) -> Self {
        Self { name, value, is_state: false }
    }

    /// Whether something is so now.
    #[must_use]
    pub fn state(name: &'static str, is_so: bool) -> Self {
        Self { name, value: is_so.into(), is_state: true }
    }
}

/// What one RX or TX queue has counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Packets received; or sent, which means completed: the NIC has taken their bytes.
    pub packets: u64,
    /// Their bytes, without FCS.
    pub bytes: u64,
    /// Packets that arrived or left damaged or were refused by the other side, and so were not counted above.
    pub errors: u64,
    /// Times a packet could not be received because no frame was free.
    pub no_frame: u64,
}

impl std::iter::Sum for QueueCounters {
    /// What several queues have counted together.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |a, b| Self {
            packets: a.packets + b.packets,
            bytes: a.bytes + b.bytes,
            errors: a.errors + b.errors,
            no_frame: a.no_frame + b.no_frame,
        })
    }
}
