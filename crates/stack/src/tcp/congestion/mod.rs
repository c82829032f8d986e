//! Congestion control: how much may be in flight.

mod cubic;
mod hystart;
mod newreno;

use std::time::Duration;

use super::seq::Seq;
use crate::Timestamp;
use crate::time::Span;
use cubic::Cubic;
use newreno::NewReno;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// NewReno's window (RFC 5681).
    NewReno,
}

/// The congestion window. All numbers are bytes. Small: each segment needs it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    pub(crate) congestion: u32,
    /// Below it is slow start.
    pub(crate) threshold: u32,
    mss: u16,
    /// Something has arrived while it was not full, since it grew last.
    pub(crate) unneeded: bool,
}

impl Window {
    /// RFC 6928: ten segments, or 14600 bytes when they are large.
    pub(crate) fn initial(mss: u32) -> Self {
        let congestion = (10 * mss).min(14_600.max(2 * mss));
        let mut window = Self { congestion, threshold: u32::MAX, ..Self::default() };
        window.set_mss(mss);
        window
    }

    /// The payload of a full segment.
    #[inline]
    pub(crate) fn mss(&self) -> u32 {
        self.mss.into()
    }

    /// See [`Window::mss`]. No segment is longer than the 65 535 bytes that IP has a length for.
    pub(crate) fn set_mss(&mut self, mss: u32) {
        self.mss = u16::try_from(mss).unwrap_or(u16::MAX);
    }

    /// RFC 5681, 3.1: one more byte for each byte acknowledged, but without its limit of a segment for each ACK (RFC 3465's is
    /// of two), which would be slow where ACKs stand for many segments. Returns what of `acked` is left.
    fn slow_start(&mut self, acked: u32) -> u32 {
        let used = acked.min(self.threshold.saturating_sub(self.congestion));
        self.congestion += used;
        acked - used
    }
}

/// What has arrived while the window was full, and how it stands then.
pub(crate) struct Arrival {
    pub(crate) bytes: u32,
    /// The round trip that was measured by it.
    pub(crate) sample: Option<Span>,
    /// SND.UNA and SND.NXT
    pub(crate) una: Seq,
    pub(crate) nxt: Seq,
    /// The smoothed round trip.
    pub(crate) smoothed: Duration,
    pub(crate) now: Timestamp,
}

/// What an algorithm decides. It never sees segments, only how many bytes arrived.
pub(crate) trait Algorithm {
    /// Lets the window grow by what has arrived.
    fn acknowledged(&mut self, window: &mut Window, arrival: &Arrival);

    /// Something was lost (or marked) with `flight` bytes in flight: the part of them that may still be.
    fn reduced(&mut self, window: &Window, flight: u32) -> u32;

    /// The connection has been idle.
    fn restarted(&mut self);

    /// The connection begins anew after a timeout; [`Self::reduced`] came before.
    fn timed_out(&mut self);
}

/// The algorithm of one connection, in place.
#[derive(Clone, Debug)]
pub(crate) enum Congestion {
    Cubic(Cubic),
    NewReno(NewReno),
}

impl Default for Congestion {
    fn default() -> Self {
        Self::new(CongestionControl::default())
    }
}

impl Congestion {
    pub(crate) fn new(control: CongestionControl) -> Self {
        match control {
            CongestionControl::Cubic => Self::Cubic(Cubic::default()),
            CongestionControl::NewReno => Self::NewReno(NewReno::default()),
        }
    }

    pub(crate) fn algorithm(&mut self) -> &mut dyn Algorithm {
        match self {
            Self::Cubic(cubic) => cubic,
            Self::NewReno(newreno) => newreno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_window_is_ten_segments() {
        assert_eq!(Window::initial(1448).congestion, 14_480);
        assert_eq!(Window::initial(536).congestion, 5360);
        assert_eq!(Window::initial(8948).congestion, 17_896);
    }

    #[test]
    fn slow_start_ends_at_the_threshold() {
        let mut window = Window { congestion: 10_000, threshold: 12_000, mss: 1000, unneeded: false };
        assert_eq!(window.slow_start(1500), 0);
        assert_eq!(window.slow_start(1500), 1000);
        assert_eq!(window.congestion, 12_000);
    }
}
