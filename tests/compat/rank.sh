# A rank that is a program: rank.sh RANK NPROCS OUTCOME SYNC. The last rank fails when the others are gone.
last=$(($2 - 1))
case $3 in value | timeout | close*) everybody=1 ;; *) everybody= ;; esac
if [ "$1" != $last ] || [ $everybody ]; then exec 3>"$4/done.$1"; fi
env -0 >"$4/env.$1"
echo "out $1 first"
echo "err $1 first äöü" >&2
echo "out $1 raw KEEP"
echo "err $1 raw KEEP" >&2
echo "out $1 last"
case $3 in timeout | close*) exec sleep 600 3>&- ;; esac
if [ $everybody ] || [ "$1" != $last ]; then exit 0; fi
rank=0
while [ $rank -lt $last ]; do
    cat "$4/done.$rank"
    rank=$((rank + 1))
done
case $3 in
code*) exit "${3#code}" ;;
kill) kill -KILL $$ ;;
segv) kill -SEGV $$ ;;
hup) kill -HUP $$ ;;
esac
