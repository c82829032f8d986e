//! A cable whose other end is in the caller's hand: a TAP interface of a host.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use bywash_sys::tun::Tap;
use bywash_sys::virtio_header::VirtioHeaderMergeable;
use rustix::io::Errno;

use crate::pair::set_up;
use crate::{End, Host, LabError, PairOptions};

/// A TAP interface of a host, and its file: what the host sends can be read, byte for byte, and what is written
/// arrives there. It is removed when dropped.
#[derive(Debug)]
pub struct TapPair {
    /// The host's end.
    pub near: End,
    /// The far end's Ethernet address and IP addresses: what the host believes is there.
    pub far: End,
    tap: Tap,
}

impl TapPair {
    /// Lays a cable from a host to the caller, with one queue. The interface is up and has a link.
    ///
    /// # Errors
    /// When a name is taken, or the kernel refuses otherwise.
    pub fn to(host: &Host, options: &PairOptions) -> Result<Self, LabError> {
        let [mut near, far] = options.ends();
        let tap = host.enter(|| Tap::create(&near.name, false))??;
        tap.set_offloads(false)?; // as on a wire
        near.index = host.link(&near.name)?.index;
        host.route().set_mac(near.index, near.mac)?;
        host.route().set_mtu(near.index, options.mtu)?;
        set_up(host, &near, &far, options.neighbours)?;
        host.wait_until_running(&near.name)?;
        Ok(Self { near, far, tap })
    }

    /// Sends a frame, Ethernet header first, to the host.
    ///
    /// # Errors
    /// `IO` when the interface is down, `BADFD` when it has been deleted.
    pub fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        self.tap.write(&[IoSlice::new(&[0; HEADER]), IoSlice::new(frame)])
    }

    /// The next frame that the host sends; `None` when it sends none in time.
    ///
    /// # Errors
    /// `BADFD` when the interface has been deleted.
    pub fn receive(&self, patience: Duration) -> Result<Option<Vec<u8>>, Errno> {
        let (mut header, mut frame) = ([0; HEADER], vec![0; 1 << 16]);
        let start = Instant::now();
        loop {
            match self.tap.read(&mut [IoSliceMut::new(&mut header), IoSliceMut::new(&mut frame)]) {
                Ok(length) => {
                    frame.truncate(length.saturating_sub(HEADER));
                    return Ok(Some(frame));
                }
                Err(Errno::AGAIN) if start.elapsed() < patience => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
    }
}

const HEADER: usize = size_of::<VirtioHeaderMergeable>();
