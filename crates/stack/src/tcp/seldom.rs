//! What a connection seldom has, and each segment asks for: one byte says what there is, and what it is lies elsewhere.

use super::connection::{Connection, Probe};
use super::seq::Seq;

/// What there is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct There(u8);

/// What it is, where there is some: see [`There`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seldom {
    probe: Probe,
    slowed_at: Seq,
    fin_at: Seq,
    duplicate: (Seq, Seq),
}

const PROBE: u8 = 1;
const SLOWED_AT: u8 = 1 << 1;
const FIN_AT: u8 = 1 << 2;
const DUPLICATE: u8 = 1 << 3;

impl There {
    #[inline]
    fn has(self, any: u8) -> bool {
        self.0 & any != 0
    }

    /// Notes one, or that there is none.
    #[inline]
    fn note<T>(&mut self, bit: u8, place: &mut T, value: Option<T>) {
        self.0 = self.0 & !bit | if value.is_some() { bit } else { 0 };
        if let Some(value) = value {
            *place = value;
        }
    }
}

impl Connection {
    /// Whether acknowledgments may say more than what has arrived: of a probe, or that a window's marks are over.
    #[inline]
    pub(super) fn awaits_word(&self) -> bool {
        self.there.has(PROBE | SLOWED_AT)
    }

    /// The tail loss probe of which it is not known yet what it has done.
    #[inline]
    pub(super) fn probe(&self) -> Option<Probe> {
        self.there.has(PROBE).then_some(self.seldom.probe)
    }

    /// See [`Connection::probe`].
    pub(super) fn set_probe(&mut self, probe: Option<Probe>) {
        self.there.note(PROBE, &mut self.seldom.probe, probe);
    }

    /// Until this is acknowledged, further marks are of the same congestion.
    #[inline]
    pub(super) fn slowed_at(&self) -> Option<Seq> {
        self.there.has(SLOWED_AT).then_some(self.seldom.slowed_at)
    }

    /// See [`Connection::slowed_at`].
    pub(super) fn set_slowed_at(&mut self, at: Option<Seq>) {
        self.there.note(SLOWED_AT, &mut self.seldom.slowed_at, at);
    }

    /// Where the peer's FIN is, if it came before all data.
    #[inline]
    pub(super) fn fin_at(&self) -> Option<Seq> {
        self.there.has(FIN_AT).then_some(self.seldom.fin_at)
    }

    /// See [`Connection::fin_at`].
    pub(super) fn set_fin_at(&mut self, at: Option<Seq>) {
        self.there.note(FIN_AT, &mut self.seldom.fin_at, at);
    }

    /// What came twice, to be reported (RFC 2883).
    #[inline]
    pub(super) fn duplicate(&self) -> Option<(Seq, Seq)> {
        self.there.has(DUPLICATE).then_some(self.seldom.duplicate)
    }

    /// See [`Connection::duplicate`].
    pub(super) fn set_duplicate(&mut self, duplicate: Option<(Seq, Seq)>) {
        self.there.note(DUPLICATE, &mut self.seldom.duplicate, duplicate);
    }
}
