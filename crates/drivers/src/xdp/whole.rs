//! Super-segments in copy mode: a packet socket takes them, and the kernel cuts them, as it does its own TCP's.
//!
//! By AF_XDP each packet goes through the driver by itself, and on a veth through all of the receiver besides: nine tenths of
//! a bulk sender's time. What the kernel cuts goes through in one go, and where the other end takes it whole it is not even
//! cut. The kernel copies in either case.
//!
//! AF_XDP passes an interface's queueing discipline by, a packet socket does not. So that packets stay in order, this is only
//! done where there is none, as on a veth.

use std::sync::Arc;

use bywash_sys::interface::Interface;
use bywash_sys::packet_socket::{PacketError, PacketSocket};
use bywash_sys::route::Route;

use crate::packet::PacketTx;

/// What takes super-segments, for each of `queues` queues; nothing where packets would not stay in order, and a warning where the
/// kernel has no packet sockets.
pub(super) fn open(interface: &Interface, queues: usize, warnings: &mut Vec<String>) -> Vec<PacketTx> {
    let link = Route::open().and_then(|mut route| route.link(&interface.name)).ok().flatten();
    if link.and_then(|link| link.qdisc).as_deref() != Some("noqueue") {
        return Vec::new();
    }
    (0..queues).map(|_| sender(interface.index)).collect::<Result<_, _>>().unwrap_or_else(|error| {
        warnings.push(format!("super-segments are cut before they are sent: {error}"));
        Vec::new()
    })
}

fn sender(index: u32) -> Result<PacketTx, PacketError> {
    let socket = PacketSocket::open()?;
    socket.bind(index)?;
    Ok(PacketTx::new(Arc::new(socket)))
}
