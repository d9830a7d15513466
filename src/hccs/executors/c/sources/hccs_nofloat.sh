#!/bin/sh
# Looks through a compiled program for floating point: instructions by disassembly, routines that stand for them by name.
# Use: hccs_nofloat.sh PREFIX ARCHITECTURE FILE, with the prefix of the binutils ("" for this computer's own).
# Routines of 64-bit integers (__aeabi_uldivmod, __udivdi3, __aeabi_llsl, ...) are no floating point.
set -eu
prefix=$1 architecture=$2 file=$3

case $architecture in
  x86-64) instruction='%[xyz]mm|%mm|%st|^f[a-z]' ;;      # SSE, AVX, MMX and x87 registers, x87 instructions
  cortex_m) instruction='^v[a-z]' ;;                    # VFP
  riscv) instruction='^(c\.)?f(l|s|add|sub|mul|div|sqrt|min|max|madd|msub|nmadd|nmsub|cvt|mv|eq|lt|le|gt|ge|class|sgnj|neg|abs|r|rcsr|scsr)' ;;
  *) echo "unknown architecture $architecture" >&2; exit 2 ;;
esac
# Run-time routines of the Arm ABI (__aeabi_fmul, __aeabi_i2d, __aeabi_l2f), then those of GCC and LLVM.
routine='__aeabi_(f|d|h|c[fd]|u?[il]2[fdh])[a-z0-9]*$|__(gnu_)?[a-z]*(hf|sf|df|tf|xf|[hsdtx]c)[a-z]*[23]?$'

# "mnemonic operands", without addresses, comments and symbols.
code=$("${prefix}objdump" -d --no-show-raw-insn "$file" | sed -nE 's/^ *[0-9a-f]+:[[:space:]]+//p' | sed -E 's/[[:space:]]*[;#@<].*$//')
count=$(printf '%s\n' "$code" | wc -l)
[ "$count" -ge 50 ] || { echo "$file: only $count instructions found" >&2; exit 2; }
found=$(printf '%s\n' "$code" | grep -E "$instruction" | grep -vE '^(fence|f[a-z]*:)' || true)
called=$("${prefix}nm" "$file" | sed -E 's/^[0-9a-f ]+[A-Za-z] //; s/^ +U //' | grep -E "^($routine)" || true)
if [ -n "$found$called" ]; then
  echo "$file: floating point" >&2
  printf '%s\n' "$found" "$called" | sort | uniq -c | sort -rn | head -20 >&2
  exit 1
fi
echo "$file: $count instructions, none of floating point, and no routine for it"
