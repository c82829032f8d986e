//! Capture files of either kind: read to the end or to the break, and what was read can be written and read again.
#![no_main]

use bywash_pcap::{Format, Interface, Reader};
use libfuzzer_sys::fuzz_target;

/// More say nothing new.
const RECORDS: usize = 1000;

fuzz_target!(|input: &[u8]| {
    let mut reader = match Reader::new(input) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(error.to_string().len() < 500);
            return;
        }
    };
    let mut records = Vec::new();
    while records.len() < RECORDS {
        match reader.next_record() {
            Ok(Some(record)) => {
                assert!(record.bytes.len() <= input.len());
                let length = record.original_len.max(u32::try_from(record.bytes.len()).unwrap_or(u32::MAX));
                records.push((record.time, length, record.bytes.to_vec()));
            }
            Ok(None) => break,
            Err(error) => {
                assert!(error.to_string().len() < 500);
                assert!(matches!(reader.next_record(), Ok(None)), "it goes on after an error");
                break;
            }
        }
    }
    for format in [Format::Pcap, Format::Pcapng] {
        let mut file = format.file_header(&Interface::named("fuzz"));
        // Classic files have 32 bits of seconds.
        let fits =
            |time: Option<u64>| time.filter(|time| *time < u64::from(u32::MAX) * 1_000_000_000).unwrap_or(0);
        for (time, length, bytes) in &records {
            let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            file.extend(format.record_head(fits(*time), captured, *length).bytes());
            file.extend(bytes);
            file.extend(format.record_tail(captured).bytes());
        }
        let mut again = Reader::new(&file[..]).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        for (time, length, bytes) in &records {
            let record =
                again.next_record().unwrap_or_else(|error| panic!("{format:?}: {error}")).expect("a record");
            assert_eq!((record.bytes, record.original_len), (&bytes[..], *length));
            assert_eq!(record.time, Some(fits(*time)));
        }
        assert!(matches!(again.next_record(), Ok(None)));
    }
});
