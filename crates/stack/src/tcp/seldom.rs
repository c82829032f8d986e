//! What a connection seldom has, and each segment asks for: its [`Facts`] say what there is, and what it is lies elsewhere.

use super::connection::{Connection, Probe};
use super::facts::{DUPLICATE, FIN_AT, Facts, PROBE, SLOWED_AT};
use super::seq::Seq;

/// What it is, where there is some: see [`Facts`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seldom {
    probe: Probe,
    slowed_at: Seq,
    fin_at: Seq,
    duplicate: (Seq, Seq),
}

impl Facts {
    /// Notes what there is of one, or that there is none.
    #[inline]
    fn note<T>(&mut self, one: Self, place: &mut T, value: Option<T>) {
        self.set(one, value.is_some());
        if let Some(value) = value {
            *place = value;
        }
    }
}

impl Connection {
    /// The tail loss probe of which it is not known yet what it has done.
    #[inline]
    pub(super) fn probe(&self) -> Option<Probe> {
        self.facts.any(PROBE).then_some(self.seldom.probe)
    }

    /// See [`Connection::probe`].
    pub(super) fn set_probe(&mut self, probe: Option<Probe>) {
        self.facts.note(PROBE, &mut self.seldom.probe, probe);
    }

    /// Until this is acknowledged, further marks are of the same congestion.
    #[inline]
    pub(super) fn slowed_at(&self) -> Option<Seq> {
        self.facts.any(SLOWED_AT).then_some(self.seldom.slowed_at)
    }

    /// See [`Connection::slowed_at`].
    pub(super) fn set_slowed_at(&mut self, at: Option<Seq>) {
        self.facts.note(SLOWED_AT, &mut self.seldom.slowed_at, at);
    }

    /// Where the peer's FIN is, if it came before all data.
    #[inline]
    pub(super) fn fin_at(&self) -> Option<Seq> {
        self.facts.any(FIN_AT).then_some(self.seldom.fin_at)
    }

    /// See [`Connection::fin_at`].
    pub(super) fn set_fin_at(&mut self, at: Option<Seq>) {
        self.facts.note(FIN_AT, &mut self.seldom.fin_at, at);
    }

    /// What came twice, to be reported (RFC 2883).
    #[inline]
    pub(super) fn duplicate(&self) -> Option<(Seq, Seq)> {
        self.facts.any(DUPLICATE).then_some(self.seldom.duplicate)
    }

    /// See [`Connection::duplicate`].
    pub(super) fn set_duplicate(&mut self, duplicate: Option<(Seq, Seq)>) {
        self.facts.note(DUPLICATE, &mut self.seldom.duplicate, duplicate);
    }
}
