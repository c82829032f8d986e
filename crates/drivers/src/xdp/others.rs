//! Packets to other stations, on a port that takes all of an interface.
//!
//! An XDP program sees what the NIC receives, and by itself that is what is addressed to the interface, and the groups and VLANs
//! that the kernel has joined: nothing that is to be forwarded, tested, or answered by a stack with groups of its own. A packet socket
//! that receives nothing has the NIC receive it all; the kernel takes that back with the socket, however the process ends.

use bywash_sys::interface::Interface;
use bywash_sys::packet_socket::PacketSocket;

/// Has the interface receive what is for others as long as this lives; else a warning says what may be missing.
pub(super) fn receive(interface: &Interface, warnings: &mut Vec<String>) -> Option<PacketSocket> {
    let socket = PacketSocket::open().and_then(|socket| {
        socket.be_promiscuous(interface.index)?;
        Ok(socket)
    });
    socket
        .map_err(|error| {
            let name = &interface.name;
            warnings.push(format!("{name} may receive no packets but its own address's: {error}"));
        })
        .ok()
}
