//! What bytes on the wire mean.
#![forbid(unsafe_code)]

mod mac;
mod number;

pub use mac::{Mac, MacError};
pub use number::{EtherType, Protocol};
