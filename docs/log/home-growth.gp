# The plot of what the unified view's home takes for a launch, by allocations and executors:
#   build/tests/unit/unified/home_growth 100000 15 > home-growth.txt
#   gnuplot docs/log/home-growth.gp
# reads home-growth.txt and writes home-growth.svg, both in the current folder.
set terminal svg size 900,360 font "sans-serif,12" background "white"
set output "home-growth.svg"
set logscale xy
set xlabel "allocations"
set format x "10^{%L}"
set xrange [70:150000]
set yrange [10:10000]
set grid
set key top left
set multiplot layout 1,3
of(executors, column) = sprintf("<awk '$2 == %d { print $1, $%d }' home-growth.txt", executors, column)
set ylabel "nanoseconds"
set title "a launch, all in place"
plot for [n in "1 4 64"] of(int(n), 3) with linespoints title n." executors"
set title "where one goes, one page away"
plot for [n in "1 4 64"] of(int(n), 4) with linespoints title n." executors"
set title "the report of its end"
plot for [n in "1 4 64"] of(int(n), 5) with linespoints title n." executors"
