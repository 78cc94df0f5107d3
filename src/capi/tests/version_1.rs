//! Long calls from C to a server that has version 1 alone (RFC 8166).

#![allow(unsafe_code, reason = "the functions are those of C")]

use std::ffi::{CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use rpcrdma_c::border::rpcrdma_error_text;
use rpcrdma_c::call::{
    ProcedureName, rpcrdma_call_free, rpcrdma_call_results_max, rpcrdma_call_run,
};
use rpcrdma_c::client::{rpcrdma_client_call, rpcrdma_client_connect, rpcrdma_client_free};
use rpcrdma_c::codes::{RPCRDMA_E_BAD_REPLY, RPCRDMA_OK};
use rpcrdma_c::options::{rpcrdma_options_free, rpcrdma_options_new, rpcrdma_options_set};
use rpcrdma_c::poller::{
    rpcrdma_poller_free, rpcrdma_poller_new, rpcrdma_poller_submit, rpcrdma_poller_wait,
};
use rpcrdma_c::read::{rpcrdma_get_opaque, rpcrdma_get_u32};
use rpcrdma_c::write::{rpcrdma_put_opaque, rpcrdma_put_u32};
use rpcrdma_control::{ListenOptions, Node, NodeConfig, ShmProvider, Versions};
use rpcrdma_engine::{Application, Outcome, ReplyWriter, Request};
use rpcrdma_testkit::pattern;
use rpcrdma_tuning::Profile;

const ECHO: ProcedureName = ProcedureName {
    program: 0x2000_0f20,
    version: 1,
    number: 1,
};

/// Sends arguments back.
struct Echo;

impl Application for Echo {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match reply.write(request.args) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }
}

fn ok(code: c_int) {
    // SAFETY: the text is that of this thread, until its next call.
    let text = unsafe { std::ffi::CStr::from_ptr(rpcrdma_error_text()) };
    assert_eq!(code, RPCRDMA_OK, "{text:?}");
}

#[test]
fn long_arguments_and_results_pass_by_version_1() {
    let at = format!("shm:capi-version-1-{}", std::process::id());
    let profile = Profile {
        bulk_buffers: 32,
        ..Profile::default()
    };
    let config = NodeConfig::from_profile(&profile, vec![None]);
    let server = Node::start(ShmProvider::from_profile(&profile), &config, |_| Echo).unwrap();
    let version_1 = ListenOptions {
        versions: Versions::One,
        ..ListenOptions::default()
    };
    server.listen(&at, version_1).unwrap();
    let at = CString::new(at).unwrap();
    let data = pattern(100_000, 5);
    // SAFETY: each handle is one that the library made, in use on this thread alone, and freed once.
    unsafe {
        let options = rpcrdma_options_new();
        // TIME: these limits end nothing on a machine that is slow.
        for limit in [c"connect_timeout_ms", c"call_timeout_ms"] {
            ok(rpcrdma_options_set(
                options,
                limit.as_ptr(),
                c"300000".as_ptr(),
            ));
        }
        let mut client = ptr::null_mut();
        ok(rpcrdma_client_connect(
            at.as_ptr(),
            options,
            &raw mut client,
        ));
        rpcrdma_options_free(options);
        let put = |call| {
            ok(rpcrdma_put_u32(call, 7));
            ok(rpcrdma_put_opaque(call, data.as_ptr().cast(), data.len()));
        };
        // One after the other: reading goes on where it came to.
        let check = |call| {
            let (mut word, mut found, mut bytes) = (0, ptr::null::<c_void>(), 0);
            ok(rpcrdma_get_u32(call, &raw mut word));
            ok(rpcrdma_get_opaque(call, &raw mut found, &raw mut bytes));
            let found = std::slice::from_raw_parts(found.cast::<u8>(), bytes);
            assert!((word, found) == (7, &*data));
        };
        for _ in 0..40 {
            let mut call = ptr::null_mut();
            ok(rpcrdma_client_call(client, ECHO, &raw mut call));
            put(call);
            ok(rpcrdma_call_results_max(call, data.len() + 8));
            ok(rpcrdma_call_run(call));
            check(call);
            rpcrdma_call_free(call);
        }
        let mut poller = ptr::null_mut();
        ok(rpcrdma_poller_new(client, 8, &raw mut poller));
        for tag in 0..8 {
            let mut call = ptr::null_mut();
            ok(rpcrdma_client_call(client, ECHO, &raw mut call));
            put(call);
            ok(rpcrdma_call_results_max(call, data.len() + 8));
            ok(rpcrdma_poller_submit(poller, call, tag));
        }
        for _ in 0..8 {
            let mut ended = MaybeUninit::uninit();
            let count = rpcrdma_poller_wait(poller, ended.as_mut_ptr(), 1, 300_000);
            assert_eq!(count, 1);
            let ended = ended.assume_init();
            ok(ended.error);
            check(ended.call);
            rpcrdma_call_free(ended.call);
        }
        rpcrdma_poller_free(poller);
        // Without room for the results.
        let mut call = ptr::null_mut();
        ok(rpcrdma_client_call(client, ECHO, &raw mut call));
        put(call);
        assert_eq!(rpcrdma_call_run(call), RPCRDMA_E_BAD_REPLY);
        rpcrdma_call_free(call);
        rpcrdma_client_free(client);
    }
}
