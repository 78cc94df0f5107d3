#!/usr/bin/env bash
# Software iWARP that behaves as the NICs on iWARP do with their libraries in rdma-core (../as-card): see cards.sh.
. "$(dirname "$0")/cards.sh"

# No end posts RDMA Reads, so that nothing goes there by RDMA.
rdma='refused/rdma refused/rdma refused/rdma'

card cxgb4 cxgb4 'placed/placed placed/placed messages/messages' "$rdma" 50
# Where 64 KiB begin, a Send has the header, the stream, padding and data: one entry more than the card gathers.
card irdma-x722 irdma/x722 'placed/placed messages/messages messages/messages' "$rdma" 50
# The cases of the suite need Receives of two segments.
card erdma erdma 'messages/messages messages/messages messages/messages' "$rdma" 0
