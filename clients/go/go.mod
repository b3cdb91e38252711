module bray

go 1.19
