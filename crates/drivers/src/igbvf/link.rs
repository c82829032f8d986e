//! The link: the port's own, as the function sees it.

use bywash_hw::igb::vf::STATUS;

use crate::igb::SPEEDS;
use crate::intel::LinkRegister;

/// Where the function sees it.
pub(super) const REGISTER: LinkRegister =
    LinkRegister { register: &STATUS, up: STATUS::LU, speed: STATUS::SPEED, mbps: SPEEDS };
