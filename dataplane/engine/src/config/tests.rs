use super::*;

#[test]
fn receives_are_the_grants_and_a_spare_for_each_connection() {
    let config = CoreConfig {
        connections_max: 10,
        credits_per_connection: 7,
        ..CoreConfig::default()
    };
    assert_eq!(config.receives(), 80);
}

#[test]
fn connections_beyond_those_with_whole_windows_have_three_receives() {
    let config = |connections_max, receives_shared| CoreConfig {
        connections_max,
        receives_shared,
        ..CoreConfig::default()
    };
    for (connections_max, shared, receives, lends) in [
        (1, 0, 33, false),
        (64, 0, 64 * 33, false),
        (65, 0, 64 * 33 + 3, true),
        (10_000, 0, 30_000 + 64 * 30, true),
        (10_000, 7, 30_007, true),
        (2, 59, 65, true),
        (2, 60, 66, false),
        (2, u32::MAX, 66, false),
    ] {
        let config = config(connections_max, shared);
        assert_eq!(
            (config.receives(), config.lends_receives()),
            (receives, lends),
            "{connections_max} connections"
        );
        assert!(config.receives_of_own_queue() >= 3);
    }
    // A window smaller than the guarantee is guaranteed whole.
    let small = CoreConfig {
        credits_per_connection: 1,
        ..config(1000, 0)
    };
    assert_eq!((small.receives(), small.lends_receives()), (2000, false));
    // What no core is made with has sizes all the same: they are asked for before that.
    let none = CoreConfig {
        credits_per_connection: 0,
        ..config(1000, 0)
    };
    assert_eq!((none.receives(), none.lends_receives()), (2000, false));
}

/// A core with no more connections than whole windows has all its memory from the beginning.
#[test]
fn receives_beyond_64_connections_and_what_is_lent_need_no_memory_yet() {
    for (connections_max, untouched) in [(1, 0), (64, 0), (65, 3), (10_000, 3 * 9936)] {
        let config = CoreConfig {
            connections_max,
            ..CoreConfig::default()
        };
        assert_eq!(config.receive_pool_untouched().buffers, untouched);
        assert_eq!(config.untouched_bytes(), u64::from(untouched) * 4160);
    }
}

/// A peer may wait for half of what it can have in any case, and for no more.
#[test]
fn calls_have_no_more_transmissions_than_guaranteed_credits_bring() {
    let most = |connections_max| {
        let config = CoreConfig {
            connections_max,
            placement: Some(PlacementConfig::default()),
            bulk_buffers: 1,
            ..CoreConfig::default()
        };
        let announced = config.announced(Properties::default());
        announced.request_transmissions_max
    };
    assert_eq!((most(64), most(65)), (16, 1));
}

#[test]
fn the_arena_holds_both_pools_wherever_they_start() {
    let config = CoreConfig {
        connections_max: 2,
        credits_per_connection: 3,
        receive_buffer_bytes: 4096,
        send_buffers: 5,
        send_buffer_bytes: 1024,
        ..CoreConfig::default()
    };
    // 8 receives of 4096 + 64, 10 send buffers of 1024 + 64 (5, two for each connection, and one), and a page of alignment each.
    // There are no bulk buffers, but their pool would start on a page.
    assert_eq!(config.arena_bytes(), 8 * 4160 + 10 * 1088 + 3 * 4096);
    let placement = PlacementConfig {
        inline_segment_bytes: 1024,
        segments: 2,
        segment_bytes: 10_000,
        spares: 3,
    };
    let config = CoreConfig {
        placement: Some(placement),
        ..config
    };
    assert_eq!(config.receive_bytes(), 1024 + 2 * 10_000);
    // 8 inline segments of 1024 + 64, 16 of 10 000 bytes in whole pages and 3 spares, the 10.
    assert_eq!(
        config.arena_bytes(),
        8 * 1088 + 19 * 12_288 + 10 * 1088 + 4 * 4096
    );
}

fn attributes(segments_max: u32, depth_max: u32, shared: bool) -> Attributes {
    Attributes {
        provider: "none",
        device: "none".to_owned(),
        queue_pairs_max: 1024,
        receive_queue_depth_max: depth_max,
        receive_segments_max: segments_max,
        send_segments_max: 4,
        send_queue_depth_max: 256,
        inline_bytes_max: 0,
        message_bytes_max: 1 << 30,
        read_depth_max: 1,
        windows_max: 0,
        shared_receive_queue: shared,
        send_with_invalidate: false,
        rails: 1,
        thread_domain_refused: None,
    }
}

/// Receivers take 4096 octets (-00 section 4.3.2), in one segment or in several.
#[test]
fn shorter_receive_buffers_than_any_peer_may_fill_are_refused() {
    let short = |bytes| CoreConfig {
        receive_buffer_bytes: bytes,
        ..CoreConfig::default()
    };
    let placing = |bytes| CoreConfig {
        placement: Some(PlacementConfig {
            inline_segment_bytes: 1024,
            segments: 1,
            segment_bytes: bytes - 1024,
            spares: 1,
        }),
        ..CoreConfig::default()
    };
    let attributes = attributes(2, 1 << 20, true);
    for made in [short as fn(u32) -> CoreConfig, placing] {
        assert!(made(4096).validate(&attributes).is_ok());
        let refused = made(4095).validate(&attributes).expect_err("too short");
        let told = "receive buffer bytes: 4095 asked for, at least 4096 needed";
        assert!(refused.to_string().contains(told), "{refused}");
    }
}

#[test]
fn device_with_fewer_segments_or_receives_is_reported() {
    let config = CoreConfig {
        connections_max: 10,
        credits_per_connection: 7,
        placement: Some(PlacementConfig::default()),
        ..CoreConfig::default()
    };
    assert!(config.validate(&attributes(2, 80, true)).is_ok());
    assert!(config.validate(&attributes(2, 8, false)).is_ok());
    let refused = |attributes: &Attributes| match config.validate(attributes) {
        Err(SetupError::Limit { what, asked, limit }) => (what, asked, limit),
        other => panic!("{other:?}"),
    };
    let (what, asked, limit) = refused(&attributes(1, 80, true));
    assert!(what.starts_with("segments of a receive buffer"), "{what}");
    assert_eq!((asked, limit), (2, 1));
    let (what, asked, limit) = refused(&attributes(2, 79, true));
    assert_eq!(
        (what, asked, limit),
        (
            "receives (those guaranteed to each connection, and those shared)",
            80,
            79
        )
    );
    let (what, asked, limit) = refused(&attributes(2, 7, false));
    assert_eq!(
        (what, asked, limit),
        ("receives of a connection (credits and one)", 8, 7)
    );
}

#[test]
fn announced_structure_is_that_of_the_buffers() {
    let config = CoreConfig {
        placement: Some(PlacementConfig::default()),
        bulk_buffers: 1,
        ..CoreConfig::default()
    };
    let announced = config.announced(Properties::default());
    let structure = announced.receive_buffer_structure.expect("sound");
    assert_eq!(structure.length_bytes(), config.receive_bytes());
    let first = structure.numbered_segment(0).expect("one is targetable");
    assert_eq!((first.offset_bytes, first.length_bytes), (1024, 65_536));
    let aligned: Vec<_> = structure
        .segments()
        .map(|it| it.segment.align_bytes)
        .collect();
    assert_eq!(aligned, [0, 4096]);
}
