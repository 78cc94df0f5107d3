//! The structures of the bindings of `verbs` against those of the C headers.
#![cfg(any(feature = "verbs", feature = "verbs-dlopen"))]

use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

#[cfg(feature = "verbs-dlopen")]
use rdma_mummy_sys as bindings;
#[cfg(not(feature = "verbs-dlopen"))]
use rdma_sys as bindings;

use bindings::{
    ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr,
    ibv_global_route, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr,
    ibv_srq_init_attr, ibv_wc, rdma_cm_event, rdma_cm_id, rdma_conn_param,
};

/// A line of what both sides print: the structure or its field, and the number.
type Line = (String, usize);

/// Collects sizes and offsets on this side, and the C program that prints the same.
struct Layouts {
    ours: Vec<Line>,
    program: String,
}

impl Layouts {
    fn line(&mut self, name: String, number: usize, expression: &str) {
        self.program
            .push_str(&format!("P(\"{name}\", {expression});\n"));
        self.ours.push((name, number));
    }
}

/// `structure { field = c_name, field, … }`: a field that the binding calls otherwise has both.
macro_rules! layouts {
    ($layouts:ident; $($structure:ident { $($field:ident $(= $c:literal)?),* $(,)? })*) => {
        $(
            let name = stringify!($structure);
            $layouts.line(
                name.to_owned(),
                size_of::<$structure>(),
                &format!("sizeof(struct {name})"),
            );
            $(
                #[allow(unused_mut, unused_assignments)]
                let mut c_name = stringify!($field).trim_end_matches('_');
                $(c_name = $c;)?
                $layouts.line(
                    format!("{name}.{c_name}"),
                    offset_of!($structure, $field),
                    &format!("offsetof(struct {name}, {c_name})"),
                );
            )*
        )*
    };
}

fn layouts() -> Layouts {
    let mut layouts = Layouts {
        ours: Vec::new(),
        program: String::new(),
    };
    layouts! { layouts;
        ibv_sge { addr, length, lkey }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags,
            imm_data_invalidated_rkey_union = "invalidate_rkey",
            wr = "wr.rdma.remote_addr",
            bind_mw_tso_union = "bind_mw.mw",
        }
        ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len,
            imm_data_invalidated_rkey_union = "invalidated_rkey",
            qp_num, src_qp, wc_flags,
        }
        ibv_async_event { element, event_type }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_qp_attr {
            qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
            pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
            retry_cnt, rnr_retry,
        }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_srq_attr { max_wr, max_sge, srq_limit }
        ibv_srq_init_attr { srq_context, attr }
        ibv_device_attr {
            max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cqe, max_qp_rd_atom,
            max_qp_init_rd_atom, max_mw, max_srq, max_srq_wr, max_srq_sge, phys_port_cnt,
        }
        ibv_device { node_type, transport_type, name }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        ibv_comp_channel { context, fd }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, lkey, rkey }
        ibv_mw { context, pd, rkey, handle, type_ }
        ibv_cq { context, channel, cq_context, cqe }
        ibv_srq { context, srq_context, pd }
        ibv_qp { context, qp_context, pd, qp_num, state, qp_type }
        rdma_cm_id { verbs, channel, context, qp, port_num, event }
        rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }
        rdma_cm_event { id, listen_id, event, status, param }
    }
    // The rest of this one is as long as the header is new; what the crate reads begins it.
    for (field, number) in [
        ("state", offset_of!(ibv_port_attr, state)),
        ("active_mtu", offset_of!(ibv_port_attr, active_mtu)),
        ("max_msg_sz", offset_of!(ibv_port_attr, max_msg_sz)),
        ("link_layer", offset_of!(ibv_port_attr, link_layer)),
    ] {
        layouts.line(
            format!("ibv_port_attr.{field}"),
            number,
            &format!("offsetof(struct ibv_port_attr, {field})"),
        );
    }
    layouts
}

/// What a C program with the system's headers says.
fn theirs(program: &str) -> Vec<Line> {
    let directory = std::env::temp_dir().join(format!("rpcrdma-layouts-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory to compile in");
    let (source, binary) = (directory.join("layouts.c"), directory.join("layouts"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\n\
         #define P(name, number) printf(\"%s %zu\\n\", name, (size_t)(number))\n\
         int main(void) {{\n{program}return 0; }}\n"
    );
    std::fs::write(&source, text).expect("the program is written");
    let run = |program: &Path, arguments: &[&Path]| {
        let output = Command::new(program)
            .args(arguments)
            .output()
            .expect("a C compiler, and what it makes");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(
        Path::new("cc"),
        &[Path::new("-o"), binary.as_path(), source.as_path()],
    );
    let printed = run(&binary, &[]);
    std::fs::remove_dir_all(&directory).expect("the directory is ours");
    printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, number)| (name.to_owned(), number.parse().expect("a number")))
        .collect()
}

/// The binding was written by hand where there are unions, and by a generator from headers that
/// may be others than the system's elsewhere.
#[test]
fn verbs_structures_are_those_of_the_headers() {
    let layouts = layouts();
    let theirs = theirs(&layouts.program);
    assert!(layouts.ours.len() > 100);
    assert_eq!(layouts.ours.len(), theirs.len());
    for (ours, theirs) in layouts.ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "(ours, then the header's)");
    }
}
