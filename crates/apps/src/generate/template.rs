//! A packet from a capture, to send it again and again.

use std::fs::File;
use std::path::Path;

use bywash_pcap::{Link, Reader};

/// Packet number `number`, counted from 1, of a pcap or pcapng file.
///
/// # Errors
/// When there is none, or none that can be sent on Ethernet; with the file's name.
pub fn packet_of_file(path: &Path, number: u64) -> Result<Vec<u8>, String> {
    let about = |reason: String| format!("{}: {reason}", path.display());
    if number == 0 {
        return Err(about("packets are counted from 1".into()));
    }
    let file = File::open(path).map_err(|error| about(error.to_string()))?;
    let mut reader = Reader::new(file).map_err(|error| about(error.to_string()))?;
    for seen in 1.. {
        let record = reader.next_record().map_err(|error| about(error.to_string()))?;
        let Some(record) = record else {
            return Err(about(format!("it has {} packets, and number {number} was asked for", seen - 1)));
        };
        if seen < number {
            continue;
        }
        if record.link != Link::ETHERNET {
            return Err(about(format!("packet {number} is of {}: only Ethernet can be sent", record.link)));
        }
        if record.is_cut() {
            return Err(about(format!(
                "of packet {number} only {} of {} bytes were captured: choose another, or capture whole packets",
                record.bytes.len(),
                record.original_len
            )));
        }
        return Ok(record.bytes.to_vec());
    }
    Err(about("it has no end".into()))
}

#[cfg(test)]
mod tests {
    use bywash_pcap::{Format, Interface};

    use super::*;

    fn file(format: Format) -> tempfile::NamedTempFile {
        let mut bytes = format.file_header(&Interface::named("eth1"));
        for (packet, original) in [(&[1; 20][..], 20), (&[2; 30], 30), (&[3; 40], 60)] {
            bytes.extend(format.record_head(1, u32::try_from(packet.len()).unwrap(), original).bytes());
            bytes.extend(packet);
            bytes.extend(format.record_tail(u32::try_from(packet.len()).unwrap()).bytes());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn a_packet_is_found_by_its_number_in_either_format() {
        for format in [Format::Pcap, Format::Pcapng] {
            let file = file(format);
            assert_eq!(packet_of_file(file.path(), 1), Ok(vec![1; 20]));
            assert_eq!(packet_of_file(file.path(), 2), Ok(vec![2; 30]));
            for (number, says) in [(0, "from 1"), (3, "only 40 of 60"), (4, "it has 3 packets")] {
                let reason = packet_of_file(file.path(), number).unwrap_err();
                assert!(reason.contains(says) && !reason.contains('\n'), "{reason}");
            }
        }
        let nothing = tempfile::NamedTempFile::new().unwrap();
        assert!(packet_of_file(nothing.path(), 1).unwrap_err().contains("empty"));
        assert!(
            packet_of_file(Path::new("/nowhere/at/all"), 1).unwrap_err().starts_with("/nowhere/at/all: ")
        );
    }
}
