// Sixteen more kernels that the suite does not have, written and put to the reference when all models had been changed.
#include <stdint.h>
#define K extern "C" __global__ void
K tpose3(const float* a, float* b, int n, int m, int l){ // b[k][j][i]=a[i][j][k]
  __shared__ float t[16][17];
  int k0=blockIdx.x*16,i0=blockIdx.y*16,j=blockIdx.z;
  for(int r=threadIdx.y;r<16;r+=8) t[r][threadIdx.x]=a[((i0+r)*m+j)*l+k0+threadIdx.x];
  __syncthreads();
  for(int r=threadIdx.y;r<16;r+=8) b[((k0+r)*m+j)*n+i0+threadIdx.x]=t[threadIdx.x][r];
}
K conv1s(const float* a,const float* w,float* o,int n){
  __shared__ float s[192+32];
  int g=blockIdx.x*192+threadIdx.x;
  s[threadIdx.x]=g<n?a[g]:0.f; if(threadIdx.x<32) s[192+threadIdx.x]=g+192<n?a[g+192]:0.f;
  __syncthreads(); float r=0; for(int k=0;k<33;k++) r+=s[threadIdx.x+(k<32?k:31)]*w[k]; if(g<n) o[g]=r;
}
K blockscan(const uint32_t* a,uint32_t* o,uint32_t* sums){
  __shared__ uint32_t w[8]; int g=blockIdx.x*256+threadIdx.x,l=threadIdx.x&31; uint32_t v=a[g],x=v;
  for(int d=1;d<32;d<<=1){uint32_t y=__shfl_up_sync(~0u,x,d); if(l>=d) x+=y;}
  if(l==31) w[threadIdx.x>>5]=x; __syncthreads();
  if(threadIdx.x<8){uint32_t z=w[threadIdx.x]; for(int d=1;d<8;d<<=1){uint32_t y=__shfl_up_sync(0xff,z,d); if(threadIdx.x>=d) z+=y;} w[threadIdx.x]=z;}
  __syncthreads(); if(threadIdx.x>=32) x+=w[(threadIdx.x>>5)-1]; o[g]=x-v; if(threadIdx.x==255) sums[blockIdx.x]=x;
}
K digits(const uint32_t* a,uint32_t* o,int n,int shift){
  __shared__ uint32_t h[4][16]; int wq=threadIdx.x>>5; if((threadIdx.x&31)<16) h[wq][threadIdx.x&15]=0; __syncwarp();
  for(int i=blockIdx.x*128+threadIdx.x;i<n;i+=gridDim.x*128) atomicAdd(&h[wq][(a[i]>>shift)&15],1u);
  __syncthreads(); if(threadIdx.x<16) o[threadIdx.x*gridDim.x+blockIdx.x]=h[0][threadIdx.x]+h[1][threadIdx.x]+h[2][threadIdx.x]+h[3][threadIdx.x];
}
K treewalk(const uint32_t* key,const uint32_t* left,const uint32_t* right,const uint32_t* q,uint32_t* o,int n){
  int g=blockIdx.x*blockDim.x+threadIdx.x; if(g>=n) return; uint32_t x=q[g],p=0; int d=0;
  while(p!=0xffffffffu){ uint32_t k=key[p]; if(k==x) break; p=x<k?left[p]:right[p]; d++; } o[g]=d;
}
K box27(const float* a,float* o,int X,int Y,int Z){
  int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*4+threadIdx.y; if(x<1||y<1||x>=X-1||y>=Y-1) return;
  for(int z=1;z<Z-1;z++){ float s=0; 
    for(int k=-1;k<2;k++) for(int j=-1;j<2;j++) for(int i=-1;i<2;i++) s+=a[((z+k)*Y+y+j)*X+x+i];
    o[(z*Y+y)*X+x]=s*(1.f/27); }
}
K chol16(float* a){
  __shared__ float s[16][17]; int i=threadIdx.x,j=threadIdx.y; float* m=a+blockIdx.x*256; s[j][i]=m[j*16+i]; __syncthreads();
  for(int k=0;k<16;k++){ if(i==k&&j==k) s[k][k]=sqrtf(s[k][k]); __syncthreads(); if(i==k&&j>k) s[j][k]/=s[k][k]; __syncthreads(); if(i>k&&j>=i) s[j][i]-=s[j][k]*s[i][k]; __syncthreads(); }
  m[j*16+i]=j>=i?s[j][i]:0.f;
}
K xorgen(const uint32_t* seed,uint32_t* o,int rounds){
  int g=blockIdx.x*blockDim.x+threadIdx.x; uint32_t x=seed[g],y=x*1664525u+1013904223u,c=0;
  for(int r=0;r<rounds;r++){ uint32_t t=x^(x<<11); x=y; y=y^(y>>19)^t^(t>>8); c+=__popc(y)+(y*2654435761u>>27); } o[g]=c^y;
}
K softrow(const float* a,float* o,int cols){
  int row=blockIdx.x*4+(threadIdx.x>>5),l=threadIdx.x&31; const float* r=a+row*cols; float m=-1e30f;
  for(int c=l;c<cols;c+=32) m=fmaxf(m,r[c]); for(int d=16;d;d>>=1) m=fmaxf(m,__shfl_xor_sync(~0u,m,d));
  float s=0; for(int c=l;c<cols;c+=32) s+=__expf(r[c]-m); for(int d=16;d;d>>=1) s+=__shfl_xor_sync(~0u,s,d);
  for(int c=l;c<cols;c+=32) o[row*cols+c]=__expf(r[c]-m)/s;
}
K kahan(const double* a,double* o,int n){
  int g=blockIdx.x*blockDim.x+threadIdx.x,st=gridDim.x*blockDim.x; double s=0,c=0;
  for(int i=g;i<n;i+=st){ double y=a[i]-c,t=s+y; c=(t-s)-y; s=t; } o[g]=s;
}
K lut(const uint8_t* a,const float* tab,float* o,int n){
  __shared__ float t[256]; t[threadIdx.x]=tab[threadIdx.x]; __syncthreads();
  for(int i=blockIdx.x*256+threadIdx.x;i<n;i+=gridDim.x*256){ int v=a[i]; o[i]=t[v]+t[(v*7+threadIdx.x)&255]+t[(v*32)&255]; }
}
K mergep(const uint32_t* a,const uint32_t* b,uint32_t* o,int n){ // n each
  int d=(blockIdx.x*blockDim.x+threadIdx.x)*16; if(d>=2*n) return; int lo=d>n?d-n:0,hi=d<n?d:n;
  while(lo<hi){int m=(lo+hi)>>1; if(a[m]<=b[d-1-m]) lo=m+1; else hi=m;}
  int i=lo,j=d-lo; for(int k=0;k<16;k++){ uint32_t v; if(i<n&&(j>=n||a[i]<=b[j])) v=a[i++]; else v=b[j++]; o[d+k]=v; }
}
K colsum(const float* a,float* o,int rows,int cols){ // a thread a row: uncoalesced
  int r=blockIdx.x*blockDim.x+threadIdx.x; if(r>=rows) return; float s=0; for(int c=0;c<cols;c++) s+=a[r*cols+c]*a[r*cols+c]; o[r]=s;
}
K triad4(const float4* a,const float4* b,float4* o,float q,int n){
  for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x){ float4 x=a[i],y=b[i]; x.x+=q*y.x;x.y+=q*y.y;x.z+=q*y.z;x.w+=q*y.w; o[i]=x; }
}
K erode(const uint8_t* a,uint8_t* o,int w,int h){
  int x=blockIdx.x*64+threadIdx.x,y=blockIdx.y*4+threadIdx.y; if(x<2||y<2||x>=w-2||y>=h-2) return; int m=255;
  for(int j=-2;j<3;j++) for(int i=-2;i<3;i++){int v=a[(y+j)*w+x+i]; m=v<m?v:m;} o[y*w+x]=m;
}
K tilemm(const float* a,const float* b,float* c,int n){ // 32x32 tile, 4 results a thread
  __shared__ float s[32][32],t[32][32]; int x=threadIdx.x,y=threadIdx.y; float r[4]={0,0,0,0}; int row=blockIdx.y*32,col=blockIdx.x*32;
  for(int k=0;k<n;k+=32){ for(int q=0;q<4;q++){ s[y+8*q][x]=a[(row+y+8*q)*n+k+x]; t[y+8*q][x]=b[(k+y+8*q)*n+col+x]; } __syncthreads();
    for(int e=0;e<32;e++) for(int q=0;q<4;q++) r[q]+=s[y+8*q][e]*t[e][x]; __syncthreads(); }
  for(int q=0;q<4;q++) c[(row+y+8*q)*n+col+x]=r[q];
}
