//! Packet memory: who owns which bytes.
//!
//! An [`Arena`] is the process's packet memory, cut into [`Frame`]s of [`FRAME_SIZE`] bytes. Whoever holds a `Frame`
//! owns its bytes; nobody else can reach them. A worker keeps its free frames in a [`Pool`], makes them into
//! [`Packet`]s, and moves packets in [`Batch`]es. A frame that the kernel or a NIC holds is *lent*: it sits in a
//! [`Ledger`] or, where frames come back in their order, in a [`RingLedger`]: its bytes cannot be reached until it comes back.
//! What may have to be sent once more is in a [`Kept`] frame: packets carry [`Part`]s of it, or are it with headers in front, and
//! nobody writes its bytes any more.
//!
//! ```
//! use bywash_frame::{Arena, Batch, Packet};
//!
//! let arena = Arena::new(vec![0; 1 << 20]).unwrap();
//! let mut pool = arena.pool(128).unwrap();
//! let mut batch = Batch::new();
//! let mut packet = Packet::new(pool.take().unwrap());
//! packet.extend_from_slice(b"hello").unwrap();
//! batch.push(packet);
//! pool.give_batch(&mut batch);
//! assert_eq!(pool.free(), 128);
//! ```
//!
//! Frames are counted, not garbage collected: a frame that is dropped by accident is not lost, it goes to the
//! arena's spare list ([`Arena::orphaned`] counts it) and a pool that has run dry finds it there.

mod arena;
mod batch;
mod checksum;
mod copy;
mod kept;
mod ledger;
mod offload;
mod packet;
mod pool;
mod prefetch;
mod ring;
mod segment;

pub use arena::{Arena, ArenaError, FRAME_DATA, FRAME_SIZE, Frame, HEADROOM, PAGE, Stride};
pub use batch::{BATCH, Batch, Place};
pub use checksum::NoPlace;
pub use copy::copy;
pub use kept::{Kept, Part, Piece};
pub use ledger::{Ledger, ReclaimError};
pub use offload::{Checksum, Offload, Segmentation, SegmentationKind};
pub use packet::{MAX_FRAMES, Packet};
pub use pool::Pool;
pub use prefetch::prefetch;
pub use ring::RingLedger;
pub use segment::{NoRoom, Segment};
