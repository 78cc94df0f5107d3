//! Compares the bindings of `verbs` with the headers of rdma-core: the layout of every declared structure and union,
//! including the tables of the inline functions, and every constant. With the feature `rdma-sys` it checks the
//! bindings of that crate.
#![allow(unsafe_code)]

use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

// The bindings are private to the fabric, so include their source.
#[path = "../src/verbs/bindings/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod bindings;

use bindings::extended::{
    VERBS_ABI_IS_EXTENDED, ibv_parent_domain_init_attr, ibv_td, ibv_td_init_attr, verbs_context,
};
use bindings::*;

/// A line of the output of both sides: the name of a structure, field or constant, and its number.
type Line = (String, i64);

/// Collects the numbers of the bindings, and the C program that prints the same numbers.
#[derive(Default)]
struct Declared {
    ours: Vec<Line>,
    program: String,
    fields: usize,
}

/// Types without a name in C, each with an expression of that type.
const UNNAMED: [(&str, &str); 12] = [
    ("ibv_gid_global_t", "((union ibv_gid *)0)->global"),
    (
        "ibv_async_event_element_t",
        "((struct ibv_async_event *)0)->element",
    ),
    ("wr_t", "((struct ibv_send_wr *)0)->wr"),
    ("rdma_t", "((struct ibv_send_wr *)0)->wr.rdma"),
    ("atomic_t", "((struct ibv_send_wr *)0)->wr.atomic"),
    ("ud_t", "((struct ibv_send_wr *)0)->wr.ud"),
    ("qp_type_t", "((struct ibv_send_wr *)0)->qp_type"),
    ("xrc_t", "((struct ibv_send_wr *)0)->qp_type.xrc"),
    ("bind_mw_t", "((struct ibv_send_wr *)0)->bind_mw"),
    ("tso_t", "((struct ibv_send_wr *)0)->tso"),
    ("addr_union_t", "((struct rdma_addr *)0)->addr"),
    ("param_t", "((struct rdma_cm_event *)0)->param"),
];

/// Unions without a name or field in C, each with the field at its start. The offsets of the surrounding structure
/// cover them.
const ANONYMOUS: [(&str, &str); 5] = [
    ("ibv_wc.imm_data_invalidated_rkey_union", "invalidated_rkey"),
    (
        "ibv_send_wr.imm_data_invalidated_rkey_union",
        "invalidate_rkey",
    ),
    ("ibv_send_wr.bind_mw_tso_union", "bind_mw"),
    ("rdma_addr.src_addr_union", "src_storage"),
    ("rdma_addr.dst_addr_union", "dst_storage"),
];

impl Declared {
    fn line(&mut self, name: &str, number: i64, expression: &str) {
        self.program
            .push_str(&format!("P(\"{name}\", {expression});\n"));
        self.ours.push((name.to_owned(), number));
    }

    /// Adds the end of a structure that grows at its beginning: its fields by their distance from the end.
    fn end(&mut self, name: &str, bytes: usize, fields: &[(&str, usize)]) {
        self.fields += fields.len();
        for &(field, offset) in fields {
            let expression = format!("sizeof(struct {name}) - offsetof(struct {name}, {field})");
            self.line(
                &format!("{name}.{field}"),
                number(bytes - offset),
                &expression,
            );
        }
    }

    /// Adds a structure or union with its fields.
    fn layout(&mut self, kind: &str, name: &str, bytes: usize, fields: &[(&str, usize)]) {
        self.fields += fields.len();
        let c_type = match name.strip_suffix("_t") {
            None => format!("{kind} {name}"),
            // A type that is not in UNNAMED is in ANONYMOUS.
            Some(_) if UNNAMED.iter().all(|(unnamed, _)| *unnamed != name) => return,
            Some(_) => name.to_owned(),
        };
        // Newer headers add fields at its end. A library called by the old symbol does not write them.
        if name != "ibv_port_attr" {
            self.line(name, number(bytes), &format!("sizeof({c_type})"));
        }
        for &(field, offset) in fields {
            let path = format!("{name}.{field}");
            let anonymous = ANONYMOUS.iter().find(|(whole, _)| *whole == path);
            let c_field = anonymous.map_or(field, |(_, part)| *part);
            let c_field = c_field.strip_prefix("type_").map_or(c_field, |_| "type");
            self.line(
                &path,
                number(offset),
                &format!("offsetof({c_type}, {c_field})"),
            );
        }
    }
}

fn number(value: usize) -> i64 {
    i64::try_from(value).expect("a small number")
}

/// The declarations of the bindings, from the list that is generated with them.
fn declared() -> Declared {
    let mut all = Declared::default();
    macro_rules! declared {
        ($($kind:ident $name:ident { $($part:ident),* $(,)? })*) => {{
            $(declared!(@$kind $name { $($part),* });)*
        }};
        (@structure $name:ident { $($field:ident),* }) => {
            all.layout("struct", stringify!($name), size_of::<$name>(), &[
                $((stringify!($field), offset_of!($name, $field))),*
            ])
        };
        (@end $name:ident { $($field:ident),* }) => {
            all.end(stringify!($name), size_of::<$name>(), &[
                $((stringify!($field), offset_of!($name, $field))),*
            ])
        };
        (@choice $name:ident { $($field:ident),* }) => {
            all.layout("union", stringify!($name), size_of::<$name>(), &[
                $((stringify!($field), offset_of!($name, $field))),*
            ])
        };
        (@module $name:ident { $($constant:ident),* }) => {
            $(all.line(stringify!($constant), $name::$constant.into(), stringify!($constant));)*
        };
        (@flags $name:ident { $($constant:ident),* }) => {
            $(all.line(stringify!($constant), $name::$constant.0.into(), stringify!($constant));)*
        };
        (@enumeration $name:ident { $($constant:ident),* }) => {
            $(all.line(stringify!($constant), $name::$constant as i64, stringify!($constant));)*
        };
        (@numbers $name:ident { $($constant:ident),* }) => {
            $(all.line(stringify!($constant), $constant.into(), stringify!($constant));)*
        };
    }
    include!("verbs_layouts/declared.rs");
    // What `bindings/extended.rs` declares.
    declared! {
        structure ibv_td { context }
        structure ibv_td_init_attr { comp_mask }
        structure ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        end verbs_context { alloc_parent_domain, dealloc_td, alloc_td, sz, context }
    }
    // As an address: the header's constant is a pointer.
    let mark = "(long long)(intptr_t)__VERBS_ABI_IS_EXTENDED";
    all.line(
        "abi_compat",
        VERBS_ABI_IS_EXTENDED.cast_signed() as i64,
        mark,
    );
    all
}

/// Compiles and runs a C program with the system's headers, and returns its output.
fn theirs(program: &str) -> Vec<Line> {
    let directory = std::env::temp_dir().join(format!("rpcrdma-layouts-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory to compile in");
    let (source, binary) = (directory.join("layouts.c"), directory.join("layouts"));
    let types: String = UNNAMED
        .iter()
        .map(|(name, expression)| format!("typedef __typeof__({expression}) {name};\n"))
        .collect();
    let text = format!(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\n\
         #define P(name, number) printf(\"%s %lld\\n\", name, (long long)(number))\n\
         {types}int main(void) {{\n{program}return 0; }}\n"
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

/// The bindings may be generated from other headers than the system's; with rdma-sys, unions are written by hand.
#[test]
fn verbs_structures_are_those_of_the_headers() {
    let declared = declared();
    let theirs = theirs(&declared.program);
    assert_eq!(declared.ours.len(), theirs.len());
    for (ours, theirs) in declared.ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "(ours, then the header's)");
    }
}

/// No declaration is added to the bindings by hand without being compared.
#[cfg(not(feature = "rdma-sys"))]
#[test]
fn every_declaration_is_compared() {
    let (types, extended, constants) = (
        include_str!("../src/verbs/bindings/types.rs"),
        include_str!("../src/verbs/bindings/extended.rs"),
        include_str!("../src/verbs/bindings/constants.rs"),
    );
    let declared = declared();
    let fields = types.lines().filter(|line| line.starts_with("    pub "));
    let in_extended = |line: &&str| line.starts_with("    pub(crate) ");
    let in_extended = extended.lines().filter(in_extended);
    assert_eq!(declared.fields, fields.count() + in_extended.count());
    let is_constant = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("pub const ") || line.starts_with("IBV_EVENT_")
    };
    let compared = declared.ours.iter().filter(|(name, _)| {
        let first = name.chars().next();
        first.is_some_and(char::is_uppercase)
    });
    assert_eq!(
        compared.count(),
        constants.lines().filter(is_constant).count()
    );
}
