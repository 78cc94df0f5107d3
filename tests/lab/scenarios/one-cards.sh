#!/usr/bin/env bash
# Soft-RoCE that behaves as the NICs do with their libraries in rdma-core (../as-card): see cards.sh.
. "$(dirname "$0")/cards.sh"

# There and back, of 4 KiB, 64 KiB and 1 MiB.
windows='placed/placed placed/placed rdma/rdma'
no_windows='placed/placed placed/placed messages/messages'
rdma='rdma/rdma rdma/rdma rdma/rdma'

card mlx4 mlx4 "$windows" "$rdma" 74
card mlx5 mlx5 "$windows" "$rdma" 74
card mlx5-connectx7 mlx5-connectx7 "$windows" "$rdma" 74
card bnxt_re bnxt_re "$no_windows" "$rdma" 69
card hns hns "$no_windows" "$rdma" 69
card ionic ionic "$windows" "$rdma" 65
card irdma irdma "$no_windows" "$rdma" 62
card irdma-gen3 irdma "$windows" "$rdma" 74
card mana mana "$no_windows" "$rdma" 62
card qedr qedr "$no_windows" "$rdma" 69
check "a card that is not known is refused" eval '! "$as_card" e1000 -- /bin/true 2>"$work/said"'
check "and those that are known are named" contains "$work/said" 'there is no card e1000; there are: .*bnxt_re'
