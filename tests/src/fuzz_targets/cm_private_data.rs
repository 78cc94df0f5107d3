//! CM private data against a byte-wise search.

use rpcrdma_protocol::cm_private_data::PrivateData;

pub(super) fn run(data: &[u8]) {
    let found = PrivateData::find(data);
    assert_eq!(found, reference(data));
    if let Some(private_data) = found {
        // What was told in whole units is told in the same octets, reserved bits apart.
        let octets = private_data.to_bytes();
        assert_eq!(PrivateData::find(&octets), found);
        let mut space = [0; 8];
        assert_eq!(private_data.encode(&mut space), Ok(8));
        assert_eq!(space, octets);
    }
    // The first octets as sizes: what is told never exceeds what is true, 1024 apart, and by less than a unit.
    if let [s0, s1, s2, s3, r0, r1, r2, r3, ..] = *data {
        let private_data = PrivateData {
            remote_invalidation: s0 & 1 == 1,
            send_bytes: u32::from_be_bytes([s0, s1, s2, s3]),
            receive_bytes: u32::from_be_bytes([r0, r1, r2, r3]),
        };
        let told = PrivateData::find(&private_data.to_bytes()).expect("our own");
        assert_eq!(told.remote_invalidation, private_data.remote_invalidation);
        for (told, true_size) in [
            (told.send_bytes, private_data.send_bytes),
            (told.receive_bytes, private_data.receive_bytes),
        ] {
            let representable = true_size.clamp(1024, 262_144);
            assert_eq!(told, representable - representable % 1024);
        }
    }
}

fn reference(data: &[u8]) -> Option<PrivateData> {
    for at in 0..data.len().saturating_sub(3) {
        if data[at..at + 4] == [0xf6, 0xab, 0x0e, 0x18] {
            if data.len() - at < 8 || data[at + 4] != 1 {
                return None;
            }
            return Some(PrivateData {
                remote_invalidation: data[at + 5] % 2 == 1,
                send_bytes: (u32::from(data[at + 6]) + 1) * 1024,
                receive_bytes: (u32::from(data[at + 7]) + 1) * 1024,
            });
        }
    }
    None
}
