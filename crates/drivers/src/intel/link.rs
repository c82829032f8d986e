//! The link: read from one register, waited for, and how often it was lost.

use std::time::Duration;

use bywash_hw::reg::{Field, Register};
use bywash_sys::function::Registers;

use super::{Bar, NicError, Wait};

/// The state of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether it is up.
    pub up: bool,
    /// Its speed in Mbit/s, when it is.
    pub mbps: Option<u32>,
}

impl Link {
    /// No link.
    pub(crate) const DOWN: Self = Self { up: false, mbps: None };
}

/// Where a NIC says what its link is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkRegister {
    /// The register.
    pub(crate) register: &'static Register,
    /// The bit that says that it is up.
    pub(crate) up: Field,
    /// The field of its speed.
    pub(crate) speed: Field,
    /// What that field's values mean, in Mbit/s; 0 is no speed that is known.
    pub(crate) mbps: [u32; 4],
}

impl LinkRegister {
    /// What the register's value says. All ones say that there is no device.
    pub(crate) fn of(&self, value: u32) -> Link {
        if !self.up.is_set(value) || value == u32::MAX {
            return Link::DOWN;
        }
        let mbps = self.mbps[self.speed.of(value) as usize & 3];
        Link { up: true, mbps: Some(mbps).filter(|mbps| *mbps > 0) }
    }

    /// The link now.
    pub(crate) fn state<R: Registers>(&self, bar: &Bar<R>) -> Link {
        self.of(bar.get(self.register))
    }

    /// Waits until it is up.
    pub(crate) fn wait<R: Registers>(&self, bar: &Bar<R>, within: Duration) -> Result<Link, NicError> {
        let meaning = "the link is down; is the cable in, and the other side on?";
        Ok(self.of(bar.wait(self.register, 0, Wait::set(self.up.mask, within, meaning))?))
    }
}

/// The link as it was last seen, and how often it was lost so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    link: Link,
    pub(crate) losses: u64,
}

impl Seen {
    /// It is seen for the first time.
    pub(crate) const fn first(link: Link) -> Self {
        Self { link, losses: 0 }
    }

    /// Somebody has looked at it.
    pub(crate) fn see(&mut self, link: Link) {
        let was = std::mem::replace(&mut self.link, link);
        self.losses += u64::from(was.up && !link.up);
    }
}
