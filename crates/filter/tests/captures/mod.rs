//! The Ethernet packets of the captures in the directory that `BYWASH_CAPTURES` names.

use std::path::Path;

/// A packet and its length on the wire.
pub(crate) type Packet = (Vec<u8>, usize);

/// All of them, or why there are none.
pub(crate) fn packets() -> Result<Vec<Packet>, String> {
    let directory =
        std::env::var_os("BYWASH_CAPTURES").ok_or("BYWASH_CAPTURES names no directory with captures")?;
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .map_err(|error| format!("{}: {error}", Path::new(&directory).display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.sort();
    let mut packets = Vec::new();
    for file in files {
        read(&std::fs::read(file).map_err(|error| error.to_string())?, &mut packets);
    }
    Ok(packets)
}

/// Reads a classic pcap file of Ethernet packets as far as it is right. Others give nothing.
fn read(file: &[u8], packets: &mut Vec<Packet>) {
    let word = |at: usize, big: bool| -> Option<usize> {
        let bytes = *file.get(at..)?.first_chunk::<4>()?;
        usize::try_from(if big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }).ok()
    };
    let big = match word(0, true) {
        Some(0xa1b2_c3d4 | 0xa1b2_3c4d) => true,
        Some(0xd4c3_b2a1 | 0x4d3c_b2a1) => false,
        _ => return,
    };
    if word(20, big).map(|kind| kind & 0xffff) != Some(1) {
        return;
    }
    let mut at = 24;
    while let (Some(captured), Some(length)) = (word(at + 8, big), word(at + 12, big)) {
        let Some(packet) = file.get(at + 16..at + 16 + captured) else { return };
        packets.push((packet.to_vec(), length));
        at += 16 + captured;
    }
}
